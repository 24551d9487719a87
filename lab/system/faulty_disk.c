/* A disk on which single calls fail, for a process that this is preloaded into and for what it starts (faulty_disk.py).

   While the file FAULTY_SWITCH exists, of the calls that write, sync, rename or link files below the folder FAULTY_ROOT one in FAULTY_EVERY fails, with EIO or
   ENOSPC. A write that fails has put half of its bytes into the file before, as a torn one has. What is drawn depends on the process and the number of the
   call alone. Each fault is a line in FAULTY_TOLD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REAL(result, name, ...) ((result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))

static atomic_uint_fast64_t calls;

static void tell(const char *name, const char *path, int error) {
    char line[4400];
    int size = snprintf(line, sizeof line, "%d %s %s %d\n", getpid(), name, path, error);
    int fd = REAL(int, "open", const char *, int, ...)(getenv("FAULTY_TOLD"), O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (fd < 0) return;
    if (REAL(ssize_t, "write", int, const void *, size_t)(fd, line, size) < 0) perror("FAULTY_TOLD");
    close(fd);
}

/* The error of this call on a file, 0: none. */
static int fault_at(const char *name, const char *path) {
    const char *root = getenv("FAULTY_ROOT"), *file = getenv("FAULTY_SWITCH"), *every = getenv("FAULTY_EVERY");
    if (!root || !file || !every || strncmp(path, root, strlen(root)) || access(file, F_OK)) return 0;
    uint64_t x = atomic_fetch_add(&calls, 1) + (uint64_t)getpid() * 2654435761u; /* splitmix64 */
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    if (x % (uint64_t)atoi(every)) return 0;
    int error = x >> 63 ? EIO : ENOSPC;
    tell(name, path, error);
    return error;
}

static int fault_of(const char *name, int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size <= 0) return 0;
    path[size] = 0;
    return fault_at(name, path);
}

static int refuse(int error) {
    errno = error;
    return -1;
}

ssize_t write(int fd, const void *data, size_t size) {
    int error = fault_of("write", fd);
    ssize_t done = REAL(ssize_t, "write", int, const void *, size_t)(fd, data, error ? size / 2 : size);
    return error ? refuse(error) : done;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    int error = fault_of("pwrite", fd);
    ssize_t done = REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t)(fd, data, error ? size / 2 : size, at);
    return error ? refuse(error) : done;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return pwrite64(fd, data, size, at); }

#define SYNC(name)                                                       \
    int name(int fd) {                                                   \
        int error = fault_of(#name, fd);                                 \
        return error ? refuse(error) : REAL(int, #name, int)(fd);        \
    }
SYNC(fsync)
SYNC(fdatasync)

#define PLACE(name)                                                                                      \
    int name(const char *from, const char *to) {                                                         \
        int error = fault_at(#name, to);                                                                 \
        return error ? refuse(error) : REAL(int, #name, const char *, const char *)(from, to);           \
    }
PLACE(rename)
PLACE(link)
