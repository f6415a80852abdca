/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/tier_ssd_dir.h"

#include "kvtier/tiers/tier_ssd_era.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

/*
 * DESIGN
 *
 *   DIR/                          0700, ours; locked only while somebody looks around or opens
 *   DIR/layout-<fingerprint>/     0700, ours; locked by the tier that uses it, for its life
 *   DIR/layout-<...>/slots-00000  0600, ours: slot files
 *   DIR/layout-<...>/era          0600, ours: which slots count
 *
 * Locks are flock()s of the directories themselves: they end with the process, however it ends, and
 * need no file. Whether a layout is in use is asked by trying its lock, which would make somebody
 * who opens it just then believe that it is taken: therefore both are done under the root's lock.
 *
 * Everything is opened relative to a descriptor that was checked, never by a path again, and no
 * link is followed: what happens to names meanwhile leads nowhere else.
 */

enum { DEPTH_MAX = 16 };

static const char layout_prefix[] = "layout-", slots_prefix[] = "slots-";

static bool is_number(const char *text, size_t digits, const char *allowed)
{
    return strlen(text) == digits && strspn(text, allowed) == digits;
}

static bool is_layout_name(const char *name)
{
    return strncmp(name, layout_prefix, sizeof layout_prefix - 1) == 0 &&
           is_number(name + sizeof layout_prefix - 1, 16, "0123456789abcdef");
}

void ssd_slot_file_name(uint32_t number, char name[SSD_NAME_BYTES])
{
    snprintf(name, SSD_NAME_BYTES, "%s%05" PRIu32, slots_prefix, number);
}

bool ssd_slot_file_number(const char *name, uint32_t *number)
{
    const char *digits = name + sizeof slots_prefix - 1;

    if (strncmp(name, slots_prefix, sizeof slots_prefix - 1) != 0 ||
        !is_number(digits, 5, "0123456789"))
        return false;
    *number = (uint32_t)strtoul(digits, NULL, 10);
    return true;
}

/* ---- opening ---- */

static int refuse(const char *path, int status, const char *reason, char why[TIER_WHY_BYTES])
{
    snprintf(why, TIER_WHY_BYTES, "%.150s: %s", path, reason);
    return status;
}

const char *tier_ssd_advice(int status)
{
    switch (-status) {
    case EACCES:
    case EPERM:
        return "let the agent's user write there, or name another directory with --ssd-dir";
    case ENOENT:
    case ENOTDIR:
        return "make the directory that it lies in, or name another with --ssd-dir";
    case EROFS:
        return "mount the file system for writing, or name another with --ssd-dir";
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return "make room on the file system, or lower --ssd-bytes";
    case EMFILE:
    case ENFILE:
        return "raise the limit of open files (LimitNOFILE= of the service, ulimit -n)";
    case EIO:
        return "see the kernel's log (dmesg): the disk may be failing";
    default:
        return "see the system's documentation of this error, or name another with --ssd-dir";
    }
}

bool ssd_is_want_of_descriptors(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOMEM;
}

int ssd_refuse_errno(const char *path, const char *what, int status, char why[TIER_WHY_BYTES])
{
    snprintf(why, TIER_WHY_BYTES, "%.100s: %s: %s: %s", path, what, strerror(-status),
             tier_ssd_advice(status));
    return status;
}

/* Opens name below at, made if it is missing, if it is a directory of ours alone. */
static int open_private(int at, const char *name, const char *path, char why[TIER_WHY_BYTES])
{
    struct stat stat;
    int fd;

    if (mkdirat(at, name, S_IRWXU) < 0 && errno != EEXIST)
        return ssd_refuse_errno(path, "cannot be made", -errno, why);
    fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && (errno == ENOTDIR || errno == ELOOP))
        return refuse(path, -EPERM, "is a link or no directory: name the directory itself", why);
    if (fd < 0)
        return ssd_refuse_errno(path, "cannot be opened", -errno, why);
    if (fstat(fd, &stat) < 0 || stat.st_uid != geteuid()) {
        close(fd);
        return refuse(path, -EPERM, "belongs to another user than the agent runs as: chown it",
                      why);
    }
    if ((stat.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
        close(fd);
        return refuse(path, -EPERM, "is open to others, and pages tell prompts: chmod 700", why);
    }
    return fd;
}

static int lock(int fd, int operation)
{
    int status;

    do
        status = flock(fd, operation);
    while (status < 0 && errno == EINTR);
    return status < 0 ? -errno : 0;
}

/* With the root's lock held. The time of the directory says afterwards when it was last used. */
static int open_layout(struct ssd_dir *dir, const char *path, char why[TIER_WHY_BYTES])
{
    dir->fd = open_private(dir->root_fd, dir->name, path, why);
    if (dir->fd < 0)
        return dir->fd;
    if (lock(dir->fd, LOCK_EX | LOCK_NB) < 0)
        return refuse(path, -EBUSY,
                      "another agent keeps pages of this layout here: give each its own directory",
                      why);
    if (faccessat(dir->fd, ".", W_OK | X_OK, AT_EACCESS) < 0)
        return ssd_refuse_errno(path, "cannot be written", -errno, why);
    (void)futimens(dir->fd, NULL);
    return 0;
}

/* Without slashes at its end: "link/" would be followed whatever the flags say. */
static int without_slashes(const char *path, char copy[PATH_MAX], char why[TIER_WHY_BYTES])
{
    size_t len = strlen(path);

    while (len > 1 && path[len - 1] == '/')
        len--;
    if (len == 0 || len >= PATH_MAX)
        return refuse(path, -EINVAL, "is no path", why);
    memcpy(copy, path, len);
    copy[len] = '\0';
    return 0;
}

int ssd_dir_open(struct ssd_dir *dir, const char *path, uint64_t layout, char why[TIER_WHY_BYTES])
{
    char root[PATH_MAX];
    int status = without_slashes(path, root, why);

    dir->fd = -1;
    dir->root_fd = status < 0 ? -1 : open_private(AT_FDCWD, root, path, why);
    snprintf(dir->name, sizeof dir->name, "%s%016" PRIx64, layout_prefix, layout);
    if (status < 0 || dir->root_fd < 0)
        return status < 0 ? status : dir->root_fd;
    status = lock(dir->root_fd, LOCK_EX);
    if (status < 0)
        (void)ssd_refuse_errno(path, "cannot be locked", status, why);
    else
        status = open_layout(dir, path, why);
    (void)lock(dir->root_fd, LOCK_UN);
    if (status < 0)
        ssd_dir_close(dir);
    return status;
}

void ssd_dir_close(struct ssd_dir *dir)
{
    if (dir->fd >= 0)
        close(dir->fd);
    if (dir->root_fd >= 0)
        close(dir->root_fd);
    dir->fd = dir->root_fd = -1;
}

/* ---- looking around ---- */

bool ssd_is_ours_alone(const struct stat *stat)
{
    return S_ISREG(stat->st_mode) && stat->st_uid == geteuid() && stat->st_nlink == 1 &&
           (stat->st_mode & (S_IRWXG | S_IRWXO)) == 0;
}

DIR *ssd_dir_list(int fd)
{
    int own = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = own < 0 ? NULL : fdopendir(own);

    if (stream == NULL && own >= 0)
        close(own);
    return stream;
}

/* The next name that is not the directory itself or the one above. NULL: no more. */
static const char *next_name(DIR *stream)
{
    const struct dirent *entry;

    do
        entry = readdir(stream);
    while (entry != NULL && (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0));
    return entry != NULL ? entry->d_name : NULL;
}

static int open_below(int at, const char *name)
{
    return openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static uint64_t bytes_of_entry(int at, const char *name, unsigned depth);

/* Of all that is in the directory, but what is a tier's own where that is counted elsewhere. */
static uint64_t bytes_below(int fd, bool has_own_apart, unsigned depth)
{
    DIR *stream = ssd_dir_list(fd);
    uint64_t bytes = 0;
    const char *name;
    uint32_t number;

    if (stream == NULL)
        return 0;
    while ((name = next_name(stream)) != NULL)
        if (!has_own_apart || !(ssd_slot_file_number(name, &number) || ssd_era_is_name(name)))
            bytes += bytes_of_entry(fd, name, depth);
    (void)closedir(stream);
    return bytes;
}

static uint64_t bytes_of_entry(int at, const char *name, unsigned depth)
{
    struct stat stat;
    uint64_t bytes;
    int fd;

    if (fstatat(at, name, &stat, AT_SYMLINK_NOFOLLOW) < 0)
        return 0; /* it has gone meanwhile */
    bytes = ssd_stat_bytes(&stat);
    if (!S_ISDIR(stat.st_mode) || depth == DEPTH_MAX)
        return bytes;
    fd = open_below(at, name);
    if (fd < 0)
        return bytes;
    bytes += bytes_below(fd, false, depth + 1);
    close(fd);
    return bytes;
}

/* Below the root, with its lock: a descriptor of the layout's directory, with the lock that says
 * that nobody uses it; -EBUSY: somebody does; else it is no directory of a layout. */
static int open_unused(const struct ssd_dir *dir, const char *name)
{
    int fd = is_layout_name(name) ? open_below(dir->root_fd, name) : -1;
    int status;

    if (fd < 0)
        return -ENOENT;
    status = lock(fd, LOCK_EX | LOCK_NB);
    if (status == 0)
        return fd;
    close(fd);
    return -EBUSY;
}

static void add_usage(const struct ssd_dir *dir, const char *name, struct ssd_usage *usage)
{
    int fd = open_unused(dir, name);

    if (fd >= 0)
        usage->unused_bytes += bytes_below(fd, false, 0);
    else if (fd != -EBUSY)
        usage->kept_bytes += bytes_of_entry(dir->root_fd, name, 0);
    else if (strcmp(name, dir->name) == 0)
        usage->kept_bytes += bytes_below(dir->fd, true, 0);
    if (fd >= 0)
        close(fd);
}

int ssd_dir_usage(const struct ssd_dir *dir, struct ssd_usage *usage)
{
    int status = lock(dir->root_fd, LOCK_EX);
    DIR *stream = status < 0 ? NULL : ssd_dir_list(dir->root_fd);
    const char *name;

    *usage = (struct ssd_usage){0};
    if (status == 0 && stream == NULL)
        status = -errno;
    while (stream != NULL && (name = next_name(stream)) != NULL)
        add_usage(dir, name, usage);
    if (stream != NULL)
        (void)closedir(stream);
    (void)lock(dir->root_fd, LOCK_UN);
    return status;
}

int ssd_dir_free_bytes(const struct ssd_dir *dir, uint64_t *bytes)
{
    struct statvfs stat;

    if (fstatvfs(dir->fd, &stat) < 0)
        return -errno;
    *bytes = (uint64_t)stat.f_bavail * stat.f_frsize;
    return 0;
}

/* ---- making room ---- */

static bool is_before(struct timespec a, struct timespec b)
{
    return a.tv_sec < b.tv_sec || (a.tv_sec == b.tv_sec && a.tv_nsec < b.tv_nsec);
}

/* Its descriptor, locked; its name. -ENOENT: all are in use. */
static int find_oldest_unused(const struct ssd_dir *dir, char oldest[SSD_NAME_BYTES])
{
    DIR *stream = ssd_dir_list(dir->root_fd);
    struct timespec when = {0};
    int found = -ENOENT;
    const char *name;

    while (stream != NULL && (name = next_name(stream)) != NULL) {
        int fd = open_unused(dir, name);
        struct stat stat;

        if (fd < 0)
            continue;
        if (fstat(fd, &stat) < 0 || (found >= 0 && !is_before(stat.st_mtim, when))) {
            close(fd);
            continue;
        }
        if (found >= 0)
            close(found);
        found = fd;
        when = stat.st_mtim;
        snprintf(oldest, SSD_NAME_BYTES, "%s", name);
    }
    if (stream != NULL)
        (void)closedir(stream);
    return found;
}

static void remove_files(int fd)
{
    DIR *stream = ssd_dir_list(fd);
    const char *name;

    while (stream != NULL && (name = next_name(stream)) != NULL)
        (void)unlinkat(fd, name, 0); /* what is no file stays, and the directory with it */
    if (stream != NULL)
        (void)closedir(stream);
}

int ssd_dir_drop_unused(const struct ssd_dir *dir)
{
    int status = lock(dir->root_fd, LOCK_EX);
    char name[SSD_NAME_BYTES];
    int fd;

    if (status < 0)
        return status;
    fd = find_oldest_unused(dir, name);
    if (fd >= 0) {
        remove_files(fd);
        status = unlinkat(dir->root_fd, name, AT_REMOVEDIR) < 0 ? -errno : 0;
        close(fd);
    } else {
        status = fd;
    }
    (void)lock(dir->root_fd, LOCK_UN);
    return status;
}
