// Lets chosen calls of the C library fail. Preloaded into a process, it counts the calls of one kind, and the
// n-th one fails, or all from it on. tests/faults/failing.py compiles and commands it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum Kind { NONE, MEMORY, MMAP, OPEN, READ, WRITE, SYNC, RENAME, THREAD, SOCKET, LENGTH };

static atomic_int armed;       // a kind
static atomic_long count, nth;
static atomic_int continues, failed;
static char folder[4096];      // calls with a path fail below it only

void failing_calls_arm(int kind, long number, int and_all_after, const char* below) {
    strncpy(folder, below, sizeof folder - 1);
    count = 0;
    failed = 0;
    nth = number;
    continues = and_all_after;
    armed = kind;
}

// Returns the number of calls that were counted.
long failing_calls_disarm(void) {
    armed = NONE;
    return count;
}

int failing_calls_failed(void) { return failed; }

static int fails(enum Kind kind, int error) {
    if (armed != (int)kind) return 0;
    const long number = atomic_fetch_add(&count, 1) + 1;
    if (number != nth && !(continues && number > nth)) return 0;
    failed = 1;
    errno = error;
    return 1;
}

// Memory fails only where chaski's core, NumPy and Python's mmap module ask for it: Python's own objects are
// not chaski's. An array of 1 KiB or less comes from NumPy's own cache. The other small blocks of NumPy do not
// fail, because its iterators read a buffer that they did not get, and the process ends.
static int is_of_core(const void* caller, size_t size) {
    Dl_info found;
    if (!dladdr(caller, &found) || found.dli_fname == NULL) return 0;
    if (strstr(found.dli_fname, "_multiarray_umath")) return size > 1024;
    return strstr(found.dli_fname, "_native") || strstr(found.dli_fname, "libstdc++") ||
           strstr(found.dli_fname, "mmap.cpython");
}

#define CORE_FAILS(kind, size, error) \
    (armed == (kind) && is_of_core(__builtin_return_address(0), size) && fails(kind, error))
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);

void* malloc(size_t size) { return CORE_FAILS(MEMORY, size, ENOMEM) ? NULL : __libc_malloc(size); }
void* calloc(size_t n, size_t size) { return CORE_FAILS(MEMORY, n * size, ENOMEM) ? NULL : __libc_calloc(n, size); }
void* realloc(void* old, size_t size) {
    return CORE_FAILS(MEMORY, size, ENOMEM) ? NULL : __libc_realloc(old, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
    return CORE_FAILS(MEMORY, size, ENOMEM) ? NULL : __libc_memalign(alignment, size);
}
int posix_memalign(void** to, size_t alignment, size_t size) {
    if (CORE_FAILS(MEMORY, size, ENOMEM)) return ENOMEM;
    *to = __libc_memalign(alignment, size);
    return *to == NULL ? ENOMEM : 0;
}

void* mmap(void* place, size_t size, int protection, int flags, int descriptor, off_t offset) {
    if (CORE_FAILS(MMAP, size, ENOMEM)) return MAP_FAILED;
    return NEXT(mmap)(place, size, protection, flags, descriptor, offset);
}
void* mmap64(void* place, size_t size, int protection, int flags, int descriptor, off_t offset) {
    if (CORE_FAILS(MMAP, size, ENOMEM)) return MAP_FAILED;
    return NEXT(mmap)(place, size, protection, flags, descriptor, offset);
}

static int is_below(const char* path) { return strncmp(path, folder, strlen(folder)) == 0; }

static int opened(int directory, const char* path, int flags, mode_t mode) {
    if (armed == OPEN && is_below(path) && fails(OPEN, EMFILE)) return -1;
    return NEXT(openat)(directory, path, flags, mode);
}
static mode_t mode_of(int flags, va_list more) {
    return (flags & (O_CREAT | O_TMPFILE)) ? va_arg(more, mode_t) : 0;
}
#define OPENING(name)                                             \
    int name(const char* path, int flags, ...) {                  \
        va_list more;                                             \
        va_start(more, flags);                                    \
        const mode_t mode = mode_of(flags, more);                 \
        va_end(more);                                             \
        return opened(AT_FDCWD, path, flags, mode);               \
    }
OPENING(open)
OPENING(open64)
#define OPENING_AT(name)                                          \
    int name(int directory, const char* path, int flags, ...) {   \
        va_list more;                                             \
        va_start(more, flags);                                    \
        const mode_t mode = mode_of(flags, more);                 \
        va_end(more);                                             \
        return opened(directory, path, flags, mode);              \
    }
OPENING_AT(openat64)

#define FILE_CALL(type, name, parameters, arguments, kind, error) \
    type name parameters {                                        \
        if (file > 2 && fails(kind, error)) return -1;            \
        return NEXT(name) arguments;                              \
    }
FILE_CALL(ssize_t, read, (int file, void* to, size_t size), (file, to, size), READ, EIO)
FILE_CALL(ssize_t, pread, (int file, void* to, size_t size, off_t at), (file, to, size, at), READ, EIO)
FILE_CALL(ssize_t, pread64, (int file, void* to, size_t size, off_t at), (file, to, size, at), READ, EIO)
FILE_CALL(ssize_t, readv, (int file, const struct iovec* to, int n), (file, to, n), READ, EIO)
FILE_CALL(ssize_t, write, (int file, const void* from, size_t size), (file, from, size), WRITE, ENOSPC)
FILE_CALL(ssize_t, pwrite, (int file, const void* from, size_t size, off_t at), (file, from, size, at), WRITE, ENOSPC)
FILE_CALL(ssize_t, pwrite64, (int file, const void* from, size_t size, off_t at), (file, from, size, at), WRITE, ENOSPC)
FILE_CALL(ssize_t, writev, (int file, const struct iovec* from, int n), (file, from, n), WRITE, ENOSPC)
FILE_CALL(int, fsync, (int file), (file), SYNC, EIO)
FILE_CALL(int, fdatasync, (int file), (file), SYNC, EIO)
FILE_CALL(int, ftruncate, (int file, off_t size), (file, size), LENGTH, ENOSPC)
FILE_CALL(int, ftruncate64, (int file, off_t size), (file, size), LENGTH, ENOSPC)
FILE_CALL(ssize_t, send, (int file, const void* from, size_t size, int flags), (file, from, size, flags), SOCKET, ECONNRESET)
FILE_CALL(ssize_t, recv, (int file, void* to, size_t size, int flags), (file, to, size, flags), SOCKET, ECONNRESET)

int connect(int file, const struct sockaddr* to, socklen_t size) {
    return fails(SOCKET, ENETUNREACH) ? -1 : NEXT(connect)(file, to, size);
}
int socket(int domain, int type, int protocol) {
    return fails(SOCKET, EMFILE) ? -1 : NEXT(socket)(domain, type, protocol);
}
int rename(const char* from, const char* to) { return fails(RENAME, EIO) ? -1 : NEXT(rename)(from, to); }
int link(const char* from, const char* to) { return fails(RENAME, EIO) ? -1 : NEXT(link)(from, to); }
int pthread_create(pthread_t* thread, const pthread_attr_t* how, void* (*start)(void*), void* value) {
    return fails(THREAD, EAGAIN) ? EAGAIN : NEXT(pthread_create)(thread, how, start, value);
}
