/* A disk that is slow to sync: fdatasync() takes SHEDLOCK_SYNC_SECONDS longer. LD_PRELOAD it into redis-server. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

int fdatasync(int file)
{
    static int (*real)(int);
    const char *seconds = getenv("SHEDLOCK_SYNC_SECONDS");
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "fdatasync");
    if (seconds)
        usleep((useconds_t)(atof(seconds) * 1e6));
    return real(file);
}
