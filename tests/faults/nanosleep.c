/*
 * LD_PRELOAD in front of libfaketime 0.9.10, Debian 12's: if it is told to leave the monotonic clock alone, it still
 * moves the deadlines of sleeps by that clock, and Python's time.sleep fails with EINVAL
 * (https://github.com/wolfcw/libfaketime/issues/426).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left)
{
    return syscall(SYS_clock_nanosleep, clock, flags, until, left) == 0 ? 0 : errno;
}
