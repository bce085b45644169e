/* The search takes a leading "-" for "without this word", and "--" for a mistake. Options are looked for as they are
   written: "--once-per" becomes "+once +per*", both words, the last perhaps not finished. */
function searchForOptions(query) {
  return query.replace(/(^|\s)--([\w-]+)/g, (_, before, name) =>
    before + name.split("-").filter(Boolean).map(word => "+" + word).join(" ") + "*")
}

const QUERY = 2 /* a message of the theme to its search worker; its data is what was typed */
const postMessage = Worker.prototype.postMessage
Worker.prototype.postMessage = function (message, ...more) {
  const isQuery = message && message.type === QUERY && typeof message.data === "string"
  return postMessage.call(this, isQuery ? { ...message, data: searchForOptions(message.data) } : message, ...more)
}
