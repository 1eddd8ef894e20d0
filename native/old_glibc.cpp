// Functions of glibc newer than 2.28 that GCC's headers and its static C++ library need, bound to versions in
// older libraries. With them the module runs with a C library older than the one it was built with.
#include <pthread.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#if defined(__x86_64__)
#define OLDEST "GLIBC_2.2.5"
#else
#define OLDEST "GLIBC_2.17"
#endif
#define OLD(name) __asm__(".symver old_" #name "," #name "@" OLDEST)

using Routine = void (*)();
OLD(pthread_create);
OLD(pthread_detach);
OLD(pthread_join);
OLD(pthread_once);
OLD(__pthread_key_create);

extern "C" {
int old_pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
int old_pthread_detach(pthread_t);
int old_pthread_join(pthread_t, void**);
int old_pthread_once(pthread_once_t*, Routine);
int old___pthread_key_create(pthread_key_t*, void (*)(void*));

#pragma GCC visibility push(hidden)
// Reports possible threads, so that shared pointers always count atomically.
char __libc_single_threaded = 0;

int fstat(int file, struct stat* about) noexcept { return static_cast<int>(syscall(SYS_fstat, file, about)); }

std::uint32_t arc4random() noexcept {
    std::uint32_t value = 0;
    while (getentropy(&value, sizeof value) != 0) {
    }
    return value;
}

// The linker's --wrap replaces these functions with their wrappers.
int __wrap_pthread_create(pthread_t* thread, const pthread_attr_t* how, void* (*what)(void*), void* with) {
    return old_pthread_create(thread, how, what, with);
}
int __wrap_pthread_detach(pthread_t thread) { return old_pthread_detach(thread); }
int __wrap_pthread_join(pthread_t thread, void** result) { return old_pthread_join(thread, result); }
int __wrap_pthread_once(pthread_once_t* flag, Routine what) { return old_pthread_once(flag, what); }
int __wrap___pthread_key_create(pthread_key_t* key, void (*end)(void*)) {
    return old___pthread_key_create(key, end);
}
#pragma GCC visibility pop
}
