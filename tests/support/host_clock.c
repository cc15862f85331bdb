/* Shows a program another time of day than the machine's: so many seconds ahead as the file $CLOCK_FILE says (a double),
   at once when that changes. Preloaded. Clocks that nobody can set are left alone, and so are the times of files.
   Not libfaketime: with monotonic clocks left alone its clock_nanosleep, Python's time.sleep, fails with EINVAL. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile double *ahead;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("CLOCK_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *seen = mmap(NULL, sizeof(double), PROT_READ, MAP_SHARED, file, 0);
        ahead = seen == MAP_FAILED ? NULL : seen;
        close(file);
    }
}

static struct timespec moved(struct timespec at, double by)
{
    at.tv_sec += (time_t)by;
    return at;
}

int clock_gettime(clockid_t which, struct timespec *at)
{
    int failed = (int)syscall(SYS_clock_gettime, which, at);
    if (!failed && ahead && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE))
        *at = moved(*at, *ahead);
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}

/* A deadline by the time of day is the machine's for the kernel; one by a monotonic clock is decades smaller. */
static struct timespec real(const struct timespec *deadline)
{
    return ahead && deadline->tv_sec > 500000000 ? moved(*deadline, -*ahead) : *deadline;
}

int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *deadline)
{
    static int (*next)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    struct timespec until = real(deadline);
    if (!next)
        next = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    return next(cond, mutex, &until);
}

int sem_timedwait(sem_t *semaphore, const struct timespec *deadline)
{
    static int (*next)(sem_t *, const struct timespec *);
    struct timespec until = real(deadline);
    if (!next)
        next = dlsym(RTLD_NEXT, "sem_timedwait");
    return next(semaphore, &until);
}
