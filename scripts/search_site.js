/* node scripts/search_site.js SITE QUERY: what the search of the built site finds, best first, one address a line.
   It runs the theme's own search worker on the site's own index, behind docs/javascripts/search.js. */
const fs = require("fs")
const path = require("path")
const vm = require("vm")

const [site, query] = process.argv.slice(2)
const scripts = path.join(site, "assets/javascripts/workers")
const worker = fs.readdirSync(scripts).find(name => /^search\..*\.js$/.test(name))
const index = JSON.parse(fs.readFileSync(path.join(site, "search/search_index.json"), "utf8"))

let receive
const inWorker = { console, addEventListener: (_, listener) => { receive = listener }, postMessage: answer }
inWorker.self = inWorker
vm.runInNewContext(fs.readFileSync(path.join(scripts, worker), "utf8"), inWorker)

class Worker {}
Worker.prototype.postMessage = message => receive({ data: message })
const inPage = vm.createContext({ Worker, console })
vm.runInContext(fs.readFileSync(path.join(site, "javascripts/search.js"), "utf8"), inPage)

const SETUP = 0, READY = 1, QUERY = 2, RESULT = 3
function answer(message) {
  if (message.type === READY) new Worker().postMessage({ type: QUERY, data: query })
  if (message.type === RESULT)
    for (const page of message.data.items)
      for (const section of page) console.log(section.location)
}
new Worker().postMessage({ type: SETUP, data: { ...index, options: { suggest: true } } })
