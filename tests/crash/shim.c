/* Preloaded into a process, kills it at the n-th call that changes something below a folder.

   Counted are calls that write, sync, truncate, rename, link, make or remove. The process is killed before the call
   takes effect, or, for calls that write, after half of the bytes. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[4096];
static atomic_long calls, fatal;
static int halves;

void crash_arm(const char *below, long at, int half) {
    strncpy(folder, below, sizeof folder - 1);
    atomic_store(&calls, 0);
    atomic_store(&fatal, at);
    halves = half;
}

long crash_calls(void) { return atomic_load(&calls); }

static int inside(const char *path) {
    size_t length = strlen(folder);
    return length && strncmp(path, folder, length) == 0 && (path[length] == '/' || !path[length]);
}

static int inside_fd(int fd) {
    char link[64], path[4096];
    if (!folder[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return inside(path);
}

static int inside_at(int fd, const char *path) {
    if (!folder[0] || !path) return 0;
    if (path[0] == '/') return inside(path);
    if (fd != AT_FDCWD) return inside_fd(fd);
    char here[4096];
    return getcwd(here, sizeof here) && inside(here);
}

static void end(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

/* Counts a call; gives whether it is the last and must be done by half. */
static int count(int counted, int can_half) {
    if (!counted) return 0;
    if (atomic_fetch_add(&calls, 1) + 1 != atomic_load(&fatal)) return 0;
    if (!halves || !can_half) end();
    return 1;
}

#define REAL(kind, name, ...) \
    static kind (*real)(__VA_ARGS__); \
    if (!real) real = (kind (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

ssize_t write(int fd, const void *bytes, size_t size) {
    REAL(ssize_t, "write", int, const void *, size_t);
    if (count(inside_fd(fd), 1)) { real(fd, bytes, size / 2); end(); }
    return real(fd, bytes, size);
}

ssize_t writev(int fd, const struct iovec *parts, int number) {
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    if (count(inside_fd(fd), 1)) { real(fd, parts, number / 2); end(); }
    return real(fd, parts, number);
}

#define PWRITE(name, offset_type) \
    ssize_t name(int fd, const void *bytes, size_t size, offset_type at) { \
        REAL(ssize_t, #name, int, const void *, size_t, offset_type); \
        if (count(inside_fd(fd), 1)) { real(fd, bytes, size / 2, at); end(); } \
        return real(fd, bytes, size, at); \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t sendfile64(int out, int in, off64_t *at, size_t size) {
    REAL(ssize_t, "sendfile64", int, int, off64_t *, size_t);
    if (count(inside_fd(out), 1)) { real(out, in, at, size / 2); end(); }
    return real(out, in, at, size);
}

ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *at, size_t size, unsigned flags) {
    REAL(ssize_t, "copy_file_range", int, off64_t *, int, off64_t *, size_t, unsigned);
    if (count(inside_fd(out), 1)) { real(in, from, out, at, size / 2, flags); end(); }
    return real(in, from, out, at, size, flags);
}

int fsync(int fd) { REAL(int, "fsync", int); count(inside_fd(fd), 0); return real(fd); }
int fdatasync(int fd) { REAL(int, "fdatasync", int); count(inside_fd(fd), 0); return real(fd); }
int ftruncate(int fd, off_t size) { REAL(int, "ftruncate", int, off_t); count(inside_fd(fd), 0); return real(fd, size); }
int ftruncate64(int fd, off64_t size) {
    REAL(int, "ftruncate64", int, off64_t); count(inside_fd(fd), 0); return real(fd, size);
}

int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *);
    count(inside_at(AT_FDCWD, to) || inside_at(AT_FDCWD, from), 0);
    return real(from, to);
}
int renameat(int f, const char *from, int t, const char *to) {
    REAL(int, "renameat", int, const char *, int, const char *);
    count(inside_at(t, to) || inside_at(f, from), 0);
    return real(f, from, t, to);
}
int renameat2(int f, const char *from, int t, const char *to, unsigned flags) {
    REAL(int, "renameat2", int, const char *, int, const char *, unsigned);
    count(inside_at(t, to) || inside_at(f, from), 0);
    return real(f, from, t, to, flags);
}
int unlink(const char *path) {
    REAL(int, "unlink", const char *); count(inside_at(AT_FDCWD, path), 0); return real(path);
}
int unlinkat(int fd, const char *path, int flags) {
    REAL(int, "unlinkat", int, const char *, int); count(inside_at(fd, path), 0); return real(fd, path, flags);
}
int rmdir(const char *path) {
    REAL(int, "rmdir", const char *); count(inside_at(AT_FDCWD, path), 0); return real(path);
}
int mkdir(const char *path, mode_t mode) {
    REAL(int, "mkdir", const char *, mode_t); count(inside_at(AT_FDCWD, path), 0); return real(path, mode);
}
int link(const char *from, const char *to) {
    REAL(int, "link", const char *, const char *); count(inside_at(AT_FDCWD, to), 0); return real(from, to);
}
int chmod(const char *path, mode_t mode) {
    REAL(int, "chmod", const char *, mode_t); count(inside_at(AT_FDCWD, path), 0); return real(path, mode);
}
int fchmod(int fd, mode_t mode) {
    REAL(int, "fchmod", int, mode_t); count(inside_fd(fd), 0); return real(fd, mode);
}

/* Opening a file makes or empties it. */
#define CHANGES (O_CREAT | O_TRUNC)
#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        REAL(int, #name, const char *, int, ...); \
        count((flags & CHANGES) && inside_at(AT_FDCWD, path), 0); \
        return real(path, flags, mode); \
    }
#define OPENAT(name) \
    int name(int fd, const char *path, int flags, ...) { \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        REAL(int, #name, int, const char *, int, ...); \
        count((flags & CHANGES) && inside_at(fd, path), 0); \
        return real(fd, path, flags, mode); \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
