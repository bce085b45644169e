/*
 * LD_PRELOAD for servers and workers: shifts the wall clock by the number of nanoseconds (int64, native byte order)
 * that the file $SHEDLOCK_CLOCK holds at that moment. The monotonic clocks do not change.
 *
 * The shim reads the clock by system call. A symbol look-up could allocate, and jemalloc reads the time before any
 * constructor has run. It also avoids the vDSO, which would bypass the shim. Deadlines by the wall clock are shifted
 * back: a thread that waits until "now + 1 s" must not wait for an hour. A wait that has begun does not notice a jump.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define FIRST_DATE 1000000000 /* seconds; a smaller deadline counts from the machine's start: a monotonic one */

static const int64_t no_offset = 0;
static const volatile int64_t *offset = &no_offset;

typedef int timedwait(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
typedef int clockwait(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
static timedwait *real_timedwait;
static clockwait *real_clockwait;

__attribute__((constructor)) static void open_clock(void)
{
    /* dlsym might find the condition variables of glibc 2.2, which are another structure. */
    real_timedwait = (timedwait *)dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real_timedwait)
        real_timedwait = (timedwait *)dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    real_clockwait = (clockwait *)dlsym(RTLD_NEXT, "pthread_cond_clockwait");

    const char *path = getenv("SHEDLOCK_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *page = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    if (page == MAP_FAILED)
        abort(); /* otherwise every test would pass, with a clock that cannot be set */
    close(file);
    offset = page;
}

static struct timespec later(struct timespec moment, int64_t nanoseconds)
{
    int64_t sum = moment.tv_sec * SECOND + moment.tv_nsec + nanoseconds;
    if (sum < 0)
        sum = 0;
    return (struct timespec){.tv_sec = sum / SECOND, .tv_nsec = sum % SECOND};
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    if (syscall(SYS_clock_gettime, clock, now) != 0)
        return -1;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
        *now = later(*now, *offset);
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec precise;
    (void)zone; /* nobody has used it for decades */
    clock_gettime(CLOCK_REALTIME, &precise);
    *now = (struct timeval){.tv_sec = precise.tv_sec, .tv_usec = precise.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *now)
{
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now)
        *now = precise.tv_sec;
    return precise.tv_sec;
}

int timespec_get(struct timespec *now, int base)
{
    return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, now) == 0 ? base : 0;
}

/* Only the deadline shows which clock a condition variable uses. */
int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *deadline)
{
    if (deadline->tv_sec < FIRST_DATE)
        return real_timedwait(condition, mutex, deadline);
    struct timespec real = later(*deadline, -*offset);
    return real_timedwait(condition, mutex, &real);
}

int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock,
                           const struct timespec *deadline)
{
    if (clock != CLOCK_REALTIME)
        return real_clockwait(condition, mutex, clock, deadline);
    struct timespec real = later(*deadline, -*offset);
    return real_clockwait(condition, mutex, clock, &real);
}
