// A library for LD_PRELOAD that counts the calls which change files below a folder, and large allocations.
// It makes one call fail, or all from one on that need space, or ends the process there; and it logs the calls with
// their data.
//
// cc -shared -fPIC -O2 -o shim.so shim.c

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { ONCE = 1, FROM_THEN_ON = 2, EXIT = 3 };

static char root[PATH_MAX];
static size_t root_length;
static int log_descriptor = -1;
static long first_call, first_allocation;  // which fails, from 1; 0: none
static int fault;                          // one of the above
static size_t smallest;                    // of the allocations that count
static long calls;
static atomic_long allocations;
static atomic_int armed;
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;

// Counts from here on. Paths are below `folder`; `call` and `allocation` are numbers from 1.
void shim_arm(const char* folder, int descriptor, long call, long allocation, int kind, size_t size) {
    root_length = strlen(folder);
    memcpy(root, folder, root_length + 1);
    log_descriptor = descriptor;
    first_call = call;
    first_allocation = allocation;
    fault = kind;
    smallest = size;
    calls = 0;
    allocations = 0;
    armed = 1;
}

void shim_disarm(void) { armed = 0; }
long shim_calls(void) { return calls; }
long shim_allocations(void) { return allocations; }

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static int is_below(const char* path) {
    return armed && strncmp(path, root, root_length) == 0 && (path[root_length] == '/' || !path[root_length]);
}

// Writes the absolute path of a name relative to a directory, and returns whether it is below the folder.
static int absolute(int directory, const char* name, char* path) {
    if (!armed) return 0;
    if (name[0] == '/') {
        snprintf(path, PATH_MAX, "%s", name);
    } else {
        char base[PATH_MAX];
        if (directory == AT_FDCWD) {
            if (!getcwd(base, sizeof base)) return 0;
        } else {
            char link[64];
            snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
            const ssize_t length = readlink(link, base, sizeof base - 1);
            if (length < 0) return 0;
            base[length] = 0;
        }
        if (snprintf(path, PATH_MAX, "%s/%s", base, name) >= PATH_MAX) return 0;
    }
    return is_below(path);
}

static int path_of(int descriptor, char* path) {
    if (!armed || descriptor == log_descriptor) return 0;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    const ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return is_below(path);
}

static void put(const void* data, size_t size) {
    while (size) {
        const ssize_t written = syscall(SYS_write, log_descriptor, data, size);
        if (written <= 0) return;
        data = (const char*)data + written;
        size -= written;
    }
}

// Counts a call; returns whether it fails. The lock is held until `end`. A full disk only fails calls that `grow`.
static int begin(int grows) {
    pthread_mutex_lock(&guard);
    ++calls;
    const int is_full = fault == FROM_THEN_ON && calls >= first_call && grows;
    const int fails = first_call && (fault == FROM_THEN_ON ? is_full : calls == first_call);
    if (fails && fault == EXIT) _exit(99);
    return fails;
}

// Logs a call as a line of fields, and the data that were written; a failed call has a "!" before its name.
static void end(const char* name, int failed, const char* path, const char* other, int descriptor, off_t offset,
                const void* data, size_t size) {
    const int kept = errno;
    if (log_descriptor >= 0) {
        struct stat status = {0};
        if (descriptor >= 0) fstat(descriptor, &status);
        if (failed) size = 0;
        char line[3 * PATH_MAX];
        const int length =
            snprintf(line, sizeof line, "%s%s\t%s\t%s\t%lu\t%ld\t%zu\n", failed ? "!" : "", name, path, other,
                     (unsigned long)status.st_ino, (long)offset, size);
        put(line, length);
        put(data, size);
    }
    pthread_mutex_unlock(&guard);
    errno = kept;
}

static int failed_with(int number) {
    errno = number;
    return -1;
}

// Creation of files

static int opened(int directory, const char* name, int flags, mode_t mode) {
    char path[PATH_MAX];
    const int changes = (flags & (O_CREAT | O_TRUNC)) && absolute(directory, name, path);
    if (!changes) return syscall(SYS_openat, directory, name, flags, mode);
    const int existed = faccessat(directory, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    if (existed && !(flags & O_TRUNC)) return syscall(SYS_openat, directory, name, flags, mode);
    const int fails = begin(1);
    const int result = fails ? failed_with(ENOSPC) : syscall(SYS_openat, directory, name, flags, mode);
    end(existed ? "empty" : "create", result < 0, path, "", result, 0, NULL, 0);
    return result;
}

#define OPEN(function, directory_parameter, directory) \
    int function(directory_parameter const char* name, int flags, ...) { \
        mode_t mode = 0; \
        if (flags & (O_CREAT | O_TMPFILE)) { \
            va_list more; \
            va_start(more, flags); \
            mode = va_arg(more, mode_t); \
            va_end(more); \
        } \
        return opened(directory, name, flags, mode); \
    }
#define DIRECTORY_PARAMETER int directory,
#define NO_PARAMETER
OPEN(open, NO_PARAMETER, AT_FDCWD)
OPEN(open64, NO_PARAMETER, AT_FDCWD)
OPEN(openat, DIRECTORY_PARAMETER, directory)
OPEN(openat64, DIRECTORY_PARAMETER, directory)

// Contents

static off_t position(int descriptor) {
    if (fcntl(descriptor, F_GETFL) & O_APPEND) {
        struct stat status;
        fstat(descriptor, &status);
        return status.st_size;
    }
    return lseek(descriptor, 0, SEEK_CUR);
}

ssize_t write(int descriptor, const void* data, size_t size) {
    char path[PATH_MAX];
    if (!path_of(descriptor, path)) return syscall(SYS_write, descriptor, data, size);
    const int fails = begin(1);
    const off_t offset = position(descriptor);
    const ssize_t result = fails ? failed_with(ENOSPC) : syscall(SYS_write, descriptor, data, size);
    end("write", result < 0, path, "", descriptor, offset, data, result < 0 ? 0 : result);
    return result;
}

static ssize_t written_at(int descriptor, const void* data, size_t size, off_t offset) {
    char path[PATH_MAX];
    if (!path_of(descriptor, path)) return syscall(SYS_pwrite64, descriptor, data, size, offset);
    const int fails = begin(1);
    const ssize_t result = fails ? failed_with(ENOSPC) : syscall(SYS_pwrite64, descriptor, data, size, offset);
    end("write", result < 0, path, "", descriptor, offset, data, result < 0 ? 0 : result);
    return result;
}

ssize_t pwrite(int descriptor, const void* data, size_t size, off_t offset) {
    return written_at(descriptor, data, size, offset);
}

ssize_t pwrite64(int descriptor, const void* data, size_t size, off_t offset) {
    return written_at(descriptor, data, size, offset);
}

ssize_t writev(int descriptor, const struct iovec* parts, int count) {
    char path[PATH_MAX];
    if (!path_of(descriptor, path)) return syscall(SYS_writev, descriptor, parts, count);
    ssize_t total = 0;  // one part at a time
    for (int part = 0; part < count; ++part) {
        const ssize_t result = write(descriptor, parts[part].iov_base, parts[part].iov_len);
        if (result < 0) return total ? total : -1;
        total += result;
        if ((size_t)result < parts[part].iov_len) break;
    }
    return total;
}

// These may be answered by "not supported"; callers then write.
ssize_t sendfile(int out, int in, off_t* offset, size_t size) {
    char path[PATH_MAX];
    return path_of(out, path) ? failed_with(EINVAL) : syscall(SYS_sendfile, out, in, offset, size);
}

ssize_t sendfile64(int out, int in, off_t* offset, size_t size) { return sendfile(out, in, offset, size); }

ssize_t copy_file_range(int in, off_t* in_offset, int out, off_t* out_offset, size_t size, unsigned flags) {
    char path[PATH_MAX];
    if (path_of(out, path)) return failed_with(EXDEV);
    return syscall(SYS_copy_file_range, in, in_offset, out, out_offset, size, flags);
}

// The C library writes streams without a call of `write` that could be replaced.
size_t fwrite(const void* data, size_t size, size_t count, FILE* stream) {
    REAL(fwrite);
    char path[PATH_MAX];
    if (!path_of(fileno(stream), path)) return real(data, size, count, stream);
    const int fails = begin(1);
    const off_t offset = ftello(stream);
    const size_t result = fails ? 0 : real(data, size, count, stream);
    if (fails) errno = ENOSPC;
    end("write", fails, path, "", fileno(stream), offset, data, result * size);
    return result;
}

int fclose(FILE* stream) {
    REAL(fclose);
    char path[PATH_MAX];
    const int descriptor = fileno(stream);
    if (!path_of(descriptor, path) || (fcntl(descriptor, F_GETFL) & O_ACCMODE) == O_RDONLY) return real(stream);
    const int fails = begin(1);
    const int result = real(stream);
    if (fails) errno = ENOSPC;
    end("close", fails, path, "", -1, 0, NULL, 0);
    return fails ? EOF : result;
}

static int truncated(int descriptor, off_t size) {
    char path[PATH_MAX];
    if (!path_of(descriptor, path)) return syscall(SYS_ftruncate, descriptor, size);
    const int fails = begin(0);
    const int result = fails ? failed_with(EIO) : syscall(SYS_ftruncate, descriptor, size);
    end("truncate", result < 0, path, "", descriptor, size, NULL, 0);
    return result;
}

int ftruncate(int descriptor, off_t size) { return truncated(descriptor, size); }
int ftruncate64(int descriptor, off_t size) { return truncated(descriptor, size); }

static int synced(int descriptor, long number) {
    char path[PATH_MAX];
    if (!path_of(descriptor, path)) return syscall(number, descriptor);
    const int fails = begin(0);
    const int result = fails ? failed_with(EIO) : syscall(number, descriptor);
    end("sync", result < 0, path, "", descriptor, 0, NULL, 0);
    return result;
}

int fsync(int descriptor) { return synced(descriptor, SYS_fsync); }
int fdatasync(int descriptor) { return synced(descriptor, SYS_fdatasync); }

// Names

static int renamed(int from, const char* old, int to, const char* new, unsigned flags) {
    char path[PATH_MAX], other[PATH_MAX];
    if (!absolute(from, old, path) | !absolute(to, new, other)) {
        return syscall(SYS_renameat2, from, old, to, new, flags);
    }
    const int fails = begin(0);
    const int result = fails ? failed_with(EIO) : syscall(SYS_renameat2, from, old, to, new, flags);
    end(flags & 2 ? "exchange" : "rename", result < 0, path, other, -1, 0, NULL, 0);
    return result;
}

int rename(const char* old, const char* new) { return renamed(AT_FDCWD, old, AT_FDCWD, new, 0); }
int renameat(int from, const char* old, int to, const char* new) { return renamed(from, old, to, new, 0); }
int renameat2(int from, const char* old, int to, const char* new, unsigned flags) {
    return renamed(from, old, to, new, flags);
}

static int made(int directory, const char* name, mode_t mode) {
    char path[PATH_MAX];
    if (!absolute(directory, name, path)) return syscall(SYS_mkdirat, directory, name, mode);
    const int fails = begin(1);
    const int result = fails ? failed_with(ENOSPC) : syscall(SYS_mkdirat, directory, name, mode);
    const int descriptor = result < 0 ? -1 : syscall(SYS_openat, directory, name, O_RDONLY | O_DIRECTORY, 0);
    end("mkdir", result < 0, path, "", descriptor, 0, NULL, 0);
    if (descriptor >= 0) close(descriptor);
    return result;
}

int mkdir(const char* name, mode_t mode) { return made(AT_FDCWD, name, mode); }
int mkdirat(int directory, const char* name, mode_t mode) { return made(directory, name, mode); }

static int linked(const char* target, int directory, const char* name) {
    char path[PATH_MAX];
    if (!absolute(directory, name, path)) return syscall(SYS_symlinkat, target, directory, name);
    const int fails = begin(1);
    const int result = fails ? failed_with(ENOSPC) : syscall(SYS_symlinkat, target, directory, name);
    end("symlink", result < 0, path, target, -1, 0, NULL, 0);
    return result;
}

int symlink(const char* target, const char* name) { return linked(target, AT_FDCWD, name); }
int symlinkat(const char* target, int directory, const char* name) { return linked(target, directory, name); }

static int hard_linked(int from, const char* old, int to, const char* new, int flags) {
    char path[PATH_MAX], other[PATH_MAX];
    if (!absolute(from, old, path) | !absolute(to, new, other)) return syscall(SYS_linkat, from, old, to, new, flags);
    const int fails = begin(1);
    const int result = fails ? failed_with(ENOSPC) : syscall(SYS_linkat, from, old, to, new, flags);
    end("link", result < 0, path, other, -1, 0, NULL, 0);
    return result;
}

int link(const char* old, const char* new) { return hard_linked(AT_FDCWD, old, AT_FDCWD, new, 0); }
int linkat(int from, const char* old, int to, const char* new, int flags) {
    return hard_linked(from, old, to, new, flags);
}

static int removed(int directory, const char* name, int flags) {
    char path[PATH_MAX];
    if (!absolute(directory, name, path)) return syscall(SYS_unlinkat, directory, name, flags);
    const int fails = begin(0);
    const int result = fails ? failed_with(EIO) : syscall(SYS_unlinkat, directory, name, flags);
    end("remove", result < 0, path, "", -1, 0, NULL, 0);
    return result;
}

int unlink(const char* name) { return removed(AT_FDCWD, name, 0); }
int rmdir(const char* name) { return removed(AT_FDCWD, name, AT_REMOVEDIR); }
int unlinkat(int directory, const char* name, int flags) { return removed(directory, name, flags); }

// Memory

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);

static int is_out(size_t size) {
    if (!armed || size < smallest || !smallest) return 0;
    const long number = ++allocations;
    const int fails =
        first_allocation && (number == first_allocation || (fault == FROM_THEN_ON && number > first_allocation));
    if (fails) errno = ENOMEM;
    return fails;
}

void* malloc(size_t size) { return is_out(size) ? NULL : __libc_malloc(size); }
void* calloc(size_t count, size_t size) { return is_out(count * size) ? NULL : __libc_calloc(count, size); }
void* realloc(void* old, size_t size) { return is_out(size) ? NULL : __libc_realloc(old, size); }
void* memalign(size_t boundary, size_t size) { return is_out(size) ? NULL : __libc_memalign(boundary, size); }
void* aligned_alloc(size_t boundary, size_t size) { return memalign(boundary, size); }
int posix_memalign(void** result, size_t boundary, size_t size) {
    void* memory = memalign(boundary, size);
    if (!memory) return ENOMEM;
    *result = memory;
    return 0;
}
