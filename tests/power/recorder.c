/* Preloaded into a program: records each change of a file below $RECORDED_DIRECTORY in $RECORD_LOG.

   A change is recorded before it is made: from then on any part of it may be on the disk. The end of a sync is
   recorded, too: from then on the disk holds what it covers. With $FAIL_AT=N, the Nth change or sync of this
   process fails with $FAIL_ERRNO, and so do the next ones, $FAIL_TIMES in all. With $CANNOT_ALLOCATE the file
   system has no fallocate. records.py has the format. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define FILES_MAX 4096
enum { WRITE = 1, END, SYNC, TRUNCATE, ALLOCATE, CREATE, MAKE_DIRECTORY, UNLINK, RENAME, MAP, NOTE, FAILED };

struct head {
    uint32_t size;        /* of the whole record */
    uint32_t kind;
    uint64_t number;      /* of this process and change, for END */
    uint64_t file;        /* inode */
    int64_t at;
    uint64_t length;
    uint32_t is_synced;   /* the descriptor has O_DSYNC */
    uint32_t name_size;
};

static int log_fd = -1;
static char root[PATH_MAX];
static size_t root_size;
static _Atomic uint64_t changes, numbers;
static uint64_t fail_at, fail_times;
static int fail_errno, cannot_allocate;
static struct { uint64_t file; char is_synced, is_recorded; } files[FILES_MAX];

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static uint64_t number_of(const char *name) {
    const char *found = getenv(name);
    return found ? strtoull(found, NULL, 10) : 0;
}

__attribute__((constructor)) static void begin(void) {
    const char *directory = getenv("RECORDED_DIRECTORY"), *log = getenv("RECORD_LOG");
    if (!directory || !log) return;
    snprintf(root, sizeof root, "%s", directory);
    root_size = strlen(root);
    log_fd = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    fail_at = number_of("FAIL_AT");
    fail_errno = number_of("FAIL_ERRNO");
    fail_times = number_of("FAIL_TIMES");
    cannot_allocate = number_of("CANNOT_ALLOCATE");
}

static int is_below(const char *path) {
    return log_fd >= 0 && !strncmp(path, root, root_size) && (path[root_size] == '/' || !path[root_size]);
}

static void path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    path[size < 0 ? 0 : size] = 0;
}

static int is_recorded(int fd) { return fd >= 0 && fd < FILES_MAX && files[fd].is_recorded; }

/* True if this change is to fail; errno is set. */
static int fails(void) {
    uint64_t number = atomic_fetch_add(&changes, 1) + 1;
    if (!fail_at || number < fail_at || number >= fail_at + fail_times) return 0;
    errno = fail_errno;
    return 1;
}

static uint64_t record(struct head head, const char *name, const struct iovec *data, int count) {
    int saved = errno;
    struct iovec parts[IOV_MAX];
    if (!head.number) head.number = ((uint64_t)getpid() << 32) | (atomic_fetch_add(&numbers, 1) + 1);
    head.name_size = name ? strlen(name) : 0;
    uint64_t size = sizeof head + head.name_size;
    parts[0] = (struct iovec){&head, sizeof head};
    parts[1] = (struct iovec){(void *)name, head.name_size};
    for (int i = 0; i < count; i++) {
        parts[2 + i] = data[i];
        size += data[i].iov_len;
    }
    head.size = size;
    syscall(SYS_writev, log_fd, parts, 2 + count);
    errno = saved;
    return head.number;
}

/* True if this change, which is no write and no sync, is to fail; then it changes nothing. */
static int is_refused(void) {
    if (!fails()) return 0;
    record((struct head){.kind = FAILED, .length = 1}, NULL, NULL, 0);
    return 1;
}

static void ended(uint64_t number) {
    record((struct head){.kind = END, .number = number}, NULL, NULL, 0);
}

static void known(int fd, int flags, int was_there) {
    struct stat status;
    if (fd < 0 || fd >= FILES_MAX) return;
    files[fd].is_recorded = 0;
    if (log_fd < 0 || flags & O_PATH || fstat(fd, &status)) return;
    char full[PATH_MAX];
    path_of(fd, full);
    if (!is_below(full) || !(S_ISREG(status.st_mode) || S_ISDIR(status.st_mode))) return;
    files[fd].file = status.st_ino;
    files[fd].is_synced = (flags & (O_DSYNC | O_SYNC)) != 0;
    files[fd].is_recorded = 1;
    if (flags & O_CREAT && !was_there && S_ISREG(status.st_mode))
        record((struct head){.kind = CREATE, .file = status.st_ino}, full, NULL, 0);
    if (flags & O_TRUNC)
        record((struct head){.kind = TRUNCATE, .file = status.st_ino}, NULL, NULL, 0);
}

static int opened(int at, const char *path, int flags, mode_t mode) {
    struct stat status;
    int was_there = !(flags & O_CREAT) || !fstatat(at, path, &status, 0);
    int fd = syscall(SYS_openat, at, path, flags, mode);
    known(fd, flags, was_there);
    return fd;
}

#define MODE(last) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, last); mode = va_arg(rest, int); va_end(rest); }

int open(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags | O_LARGEFILE, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(flags) return opened(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags) return opened(at, path, flags | O_LARGEFILE, mode); }

int close(int fd) {
    if (fd >= 0 && fd < FILES_MAX) files[fd].is_recorded = 0;
    return REAL(close)(fd);
}

/* -- data -- */

static ssize_t written(int fd, const struct iovec *data, int count, off_t at, int is_placed) {
    uint64_t number = 0, length = 0;
    if (is_recorded(fd)) {
        for (int i = 0; i < count; i++) length += data[i].iov_len;
        if (fails()) {
            record((struct head){.kind = FAILED, .file = files[fd].file, .length = length,
                                 .is_synced = files[fd].is_synced}, NULL, NULL, 0);
            return -1;
        }
        if (!is_placed) at = lseek(fd, 0, SEEK_CUR);
        struct head head = {.kind = WRITE, .file = files[fd].file, .at = at, .length = length,
                            .is_synced = files[fd].is_synced};
        number = record(head, NULL, data, count);
    }
    ssize_t size = is_placed ? syscall(SYS_pwritev, fd, data, count, at, 0) : syscall(SYS_writev, fd, data, count);
    if (number && files[fd].is_synced && size >= 0) ended(number);
    return size;
}

ssize_t write(int fd, const void *data, size_t size) {
    if (!is_recorded(fd)) return syscall(SYS_write, fd, data, size);
    return written(fd, &(struct iovec){(void *)data, size}, 1, 0, 0);
}
ssize_t writev(int fd, const struct iovec *data, int count) { return written(fd, data, count, 0, 0); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    return written(fd, &(struct iovec){(void *)data, size}, 1, at, 1);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) { return pwrite(fd, data, size, at); }
ssize_t pwritev(int fd, const struct iovec *data, int count, off_t at) { return written(fd, data, count, at, 1); }
ssize_t pwritev64(int fd, const struct iovec *data, int count, off_t at) { return written(fd, data, count, at, 1); }

/* Its callers then copy by read and write, which are recorded. */
ssize_t copy_file_range(int from, off_t *from_at, int to, off_t *to_at, size_t size, unsigned flags) {
    if (!is_recorded(to)) return REAL(copy_file_range)(from, from_at, to, to_at, size, flags);
    errno = ENOSYS;
    return -1;
}

int ftruncate(int fd, off_t size) {
    if (is_recorded(fd)) {
        if (is_refused()) return -1;
        record((struct head){.kind = TRUNCATE, .file = files[fd].file, .at = size}, NULL, NULL, 0);
    }
    return REAL(ftruncate)(fd, size);
}
int ftruncate64(int fd, off_t size) { return ftruncate(fd, size); }

int posix_fallocate(int fd, off_t at, off_t size) {
    if (is_recorded(fd)) {
        if (cannot_allocate) return EOPNOTSUPP;
        if (is_refused()) return errno;
        record((struct head){.kind = ALLOCATE, .file = files[fd].file, .at = at, .length = size}, NULL, NULL, 0);
    }
    return REAL(posix_fallocate)(fd, at, size);
}
int posix_fallocate64(int fd, off_t at, off_t size) { return posix_fallocate(fd, at, size); }

void *mmap(void *where, size_t size, int rights, int flags, int fd, off_t at) {
    if (is_recorded(fd) && flags & MAP_SHARED && rights & PROT_WRITE)
        record((struct head){.kind = MAP, .file = files[fd].file}, NULL, NULL, 0);
    return (void *)syscall(SYS_mmap, where, size, rights, flags, fd, at);
}
void *mmap64(void *where, size_t size, int rights, int flags, int fd, off_t at) {
    return mmap(where, size, rights, flags, fd, at);
}

/* -- syncs -- */

static int synced(int fd, int call) {
    if (!is_recorded(fd)) return syscall(call, fd);
    if (fails()) {
        record((struct head){.kind = FAILED, .file = files[fd].file}, NULL, NULL, 0);
        return -1;
    }
    uint64_t number = record((struct head){.kind = SYNC, .file = files[fd].file}, NULL, NULL, 0);
    int answer = syscall(call, fd);
    if (!answer) ended(number);
    return answer;
}
int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

/* -- names -- */

static void full_path(int at, const char *name, char *full) {
    char folder[PATH_MAX];
    if (name[0] == '/') { snprintf(full, PATH_MAX, "%s", name); return; }
    if (at == AT_FDCWD) { if (!getcwd(folder, sizeof folder)) folder[0] = 0; }
    else path_of(at, folder);
    snprintf(full, PATH_MAX, "%.2000s/%.2000s", folder, name);
}

int unlinkat(int at, const char *name, int flags) {
    char full[PATH_MAX];
    full_path(at, name, full);
    if (is_below(full) && !(flags & AT_REMOVEDIR)) {
        if (is_refused()) return -1;
        record((struct head){.kind = UNLINK}, full, NULL, 0);
    }
    return syscall(SYS_unlinkat, at, name, flags);
}
int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }

int mkdirat(int at, const char *name, mode_t mode) {
    char full[PATH_MAX];
    struct stat status;
    full_path(at, name, full);
    int answer = syscall(SYS_mkdirat, at, name, mode);
    if (!answer && is_below(full) && !fstatat(at, name, &status, 0))
        record((struct head){.kind = MAKE_DIRECTORY, .file = status.st_ino}, full, NULL, 0);
    return answer;
}
int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }

int renameat(int from_at, const char *from, int to_at, const char *to) {
    char old[PATH_MAX], new[PATH_MAX];
    full_path(from_at, from, old);
    full_path(to_at, to, new);
    if (is_below(new)) {
        if (is_refused()) return -1;
        struct iovec target = {new, strlen(new)};
        record((struct head){.kind = RENAME}, old, &target, 1);
    }
    return syscall(SYS_renameat, from_at, from, to_at, to);
}
int rename(const char *from, const char *to) { return renameat(AT_FDCWD, from, AT_FDCWD, to); }
