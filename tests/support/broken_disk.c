/* Lets a folder fail as a disk or a file server does: while the file $BROKEN_ERRNO (an int) is not 0, what is done below
   the folder $BROKEN_FOLDER fails with that error. EDQUOT: what takes room. Anything else: all of it. Preloaded. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const volatile int *broken;
static const char *folder = "";

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("BROKEN_ERRNO");
    int file = path ? ((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open"))(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *seen = mmap(NULL, sizeof(int), PROT_READ, MAP_SHARED, file, 0);
        broken = seen == MAP_FAILED ? NULL : seen;
        close(file);
    }
    if (getenv("BROKEN_FOLDER"))
        folder = getenv("BROKEN_FOLDER");
}

static int below(const char *path)
{
    return path && *folder && !strncmp(path, folder, strlen(folder));
}

static int fails(int hit)
{
    if (hit)
        errno = *broken;
    return hit;
}

static int path_fails(const char *path, int takes_room)
{
    return broken && *broken && (takes_room || *broken != EDQUOT) && fails(below(path));
}

static int file_fails(int file)
{
    char link[64], path[PATH_MAX + 1];
    if (!broken || !*broken)
        return 0;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, path, PATH_MAX);
    path[size < 0 ? 0 : size] = 0;
    return fails(below(path));
}

#define NEXT(name, type) static type next; if (!next) next = (type)dlsym(RTLD_NEXT, name)

#define OPEN(name) \
    int name(const char *path, int flags, ...) \
    { \
        typedef int (*opens)(const char *, int, ...); \
        NEXT(#name, opens); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        return path_fails(path, flags & O_CREAT) ? -1 : next(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define STAT(name) \
    int name(const char *restrict path, struct stat64 *restrict into) \
    { \
        typedef int (*stats)(const char *, struct stat64 *); \
        NEXT(#name, stats); \
        return path_fails(path, 0) ? -1 : next(path, into); \
    }
STAT(stat64)
STAT(lstat64)

ssize_t write(int file, const void *data, size_t size)
{
    typedef ssize_t (*writes)(int, const void *, size_t);
    NEXT("write", writes);
    return file_fails(file) ? -1 : next(file, data, size);
}

int fsync(int file)
{
    typedef int (*syncs)(int);
    NEXT("fsync", syncs);
    return file_fails(file) ? -1 : next(file);
}

int mkdir(const char *path, mode_t mode)
{
    typedef int (*makes)(const char *, mode_t);
    NEXT("mkdir", makes);
    return path_fails(path, 1) ? -1 : next(path, mode);
}

int rename(const char *from, const char *to)
{
    typedef int (*renames)(const char *, const char *);
    NEXT("rename", renames);
    return path_fails(from, 0) ? -1 : next(from, to);
}
