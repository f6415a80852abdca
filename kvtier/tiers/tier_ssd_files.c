/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/tier_ssd_files.h"

#include "kvtier/tiers/slot_list.h"
#include "kvtier/tiers/tier_ssd_dir.h"
#include "kvtier/tiers/tier_ssd_era.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * DESIGN
 *
 *   slots-00000  | list | header | payload | header | payload | ... | list | header | ...
 *   slots-00001  | list | header | ...                           8 GiB at most, the last is shorter
 *
 * Where a slot lies depends on its number and the size of a page alone, so that a quota that is
 * changed cuts or lengthens the end and moves nothing. Therefore a list (slot_list.h) stands before
 * its own slots instead of with the others at the front. Header and payload of a slot lie side by
 * side: a load is one transfer. Files are few and large, as each costs two descriptors.
 *
 * The number of slots is settled at the start: what the quota leaves beside files we know nothing
 * of, or the file system beside its reserve, whichever is less. A file is allocated whole before
 * its first slot is written, so that later writes find their room; until then layouts that nobody
 * uses may keep theirs, and go, oldest first, when a file of ours needs it. A little is left to the
 * file system's own bookkeeping, which quota and reserve count too.
 *
 * A file of our name that is not a plain file of ours alone is removed. One that is too short is
 * lengthened: what is missing reads as zeros, which is an empty slot or a checksum that does not
 * agree. One that is too long or beyond the last one is cut or removed: the quota has shrunk.
 */

#define FILE_BYTES (UINT64_C(8) << 30)
enum { BOOKKEEPING_PART = 1024, FILE_COUNT_MAX = 100000 };

struct ssd_file {
    atomic_int fd; /* -1: not there; set last, when all else is */
    int direct_fd;
    uint64_t found_bytes; /* that an earlier life left; behind them are zeros */
};

struct ssd_files {
    struct ssd_dir dir;
    uint64_t quota_bytes;
    uint64_t reserve_bytes;
    uint64_t slot_bytes;
    uint32_t slot_count;
    uint32_t slots_per_file;
    uint32_t file_count;
    bool is_direct;
    pthread_mutex_t mutex; /* who makes a file */
    struct ssd_file *files;
};

static uint64_t less(uint64_t from, uint64_t what)
{
    return from > what ? from - what : 0;
}

/* ---- where ---- */

static_assert((int)SLOT_LIST_BYTES == (int)TIER_ALIGN_BYTES, "a list is a sector");

static uint64_t lists_for(uint64_t slots)
{
    return (slots + SLOT_LIST_SLOTS - 1) / SLOT_LIST_SLOTS;
}

/* What so many slots take, from the beginning of a file on, with their lists. */
static uint64_t bytes_of_slots(uint64_t slots, uint64_t slot_bytes)
{
    return lists_for(slots) * SLOT_LIST_BYTES + slots * slot_bytes;
}

/* How many go into so many bytes. */
static uint64_t slots_in_bytes(uint64_t bytes, uint64_t slot_bytes)
{
    const uint64_t group_bytes = bytes_of_slots(SLOT_LIST_SLOTS, slot_bytes);

    return bytes / group_bytes * SLOT_LIST_SLOTS +
           less(bytes % group_bytes, SLOT_LIST_BYTES) / slot_bytes;
}

static uint64_t file_bytes(const struct ssd_files *files, uint32_t number)
{
    uint32_t left = files->slot_count - number * files->slots_per_file;

    return bytes_of_slots(left < files->slots_per_file ? left : files->slots_per_file,
                          files->slot_bytes);
}

static uint32_t slots_per_file(uint64_t bytes, uint64_t slot_bytes)
{
    uint64_t count = slots_in_bytes(bytes, slot_bytes);

    if (count == 0)
        count = 1;
    return count < UINT32_MAX ? (uint32_t)count : UINT32_MAX;
}

/* In all files. */
static uint64_t slots_in_room(const struct ssd_files *files, uint64_t bytes)
{
    const uint64_t full_bytes = bytes_of_slots(files->slots_per_file, files->slot_bytes);

    return bytes / full_bytes * files->slots_per_file +
           slots_in_bytes(bytes % full_bytes, files->slot_bytes);
}

static uint32_t lists_per_file(const struct ssd_files *files)
{
    return (uint32_t)lists_for(files->slots_per_file);
}

/* ---- one file ---- */

int ssd_write_status(int status)
{
    switch (status) {
    case 0:
    case -EROFS:
    case -EMFILE:
        return status;
    case -ENFILE:
        return -EMFILE;
    case -ENOSPC:
    case -EDQUOT:
    case -EFBIG:
        return -ENOSPC;
    default:
        return -EIO;
    }
}

/* From the bytes that are there to all of them; where nothing can be allocated ahead, a hole. */
static int lengthen(int fd, uint64_t from, uint64_t to)
{
    if (fallocate(fd, 0, (off_t)from, (off_t)(to - from)) == 0)
        return 0;
    if (ssd_write_status(-errno) == -ENOSPC)
        return -ENOSPC;
    return ftruncate(fd, (off_t)to) == 0 ? 0 : -errno;
}

static int put_in_place(struct ssd_files *files, uint32_t number, const char *name, int fd)
{
    struct ssd_file *file = &files->files[number];

    file->direct_fd = -1;
    if (files->is_direct)
        file->direct_fd = openat(files->dir.fd, name, O_RDWR | O_DIRECT | O_NOFOLLOW | O_CLOEXEC);
    if (files->is_direct && file->direct_fd < 0 && ssd_is_want_of_descriptors(errno))
        return -errno;
    atomic_store_explicit(&file->fd, fd, memory_order_release);
    return 0;
}

/* One that an earlier life left, if it is good; else it goes. -errno: nobody can tell. */
static int open_file(struct ssd_files *files, uint32_t number)
{
    uint64_t bytes = file_bytes(files, number);
    char name[SSD_NAME_BYTES];
    struct stat stat;
    int fd, status = 0;

    ssd_slot_file_name(number, name);
    fd = openat(files->dir.fd, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return 0;
    if (fd < 0 && ssd_is_want_of_descriptors(errno))
        return -errno;
    if (fd >= 0 && fstat(fd, &stat) < 0)
        status = -errno;
    if (status == 0 && fd >= 0 && ssd_is_ours_alone(&stat)) {
        if ((uint64_t)stat.st_size > bytes)
            status = ftruncate(fd, (off_t)bytes) < 0 ? -errno : 0;
        else if ((uint64_t)stat.st_size < bytes)
            status = lengthen(fd, (uint64_t)stat.st_size, bytes);
    } else {
        status = -EPERM;
    }
    if (status == 0) {
        files->files[number].found_bytes = (uint64_t)stat.st_size;
        status = put_in_place(files, number, name, fd);
        if (status < 0)
            close(fd);
        return status;
    }
    if (fd >= 0)
        close(fd);
    (void)unlinkat(files->dir.fd, name, 0);
    return 0;
}

static int create_file(struct ssd_files *files, uint32_t number)
{
    const int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    char name[SSD_NAME_BYTES];
    int fd, status;

    ssd_slot_file_name(number, name);
    (void)unlinkat(files->dir.fd, name, 0); /* of our name, but not found good */
    fd = openat(files->dir.fd, name, flags, S_IRUSR | S_IWUSR);
    if (fd < 0)
        return -errno;
    status = lengthen(fd, 0, file_bytes(files, number));
    if (status == 0)
        status = put_in_place(files, number, name, fd);
    if (status == 0)
        return 0;
    close(fd);
    (void)unlinkat(files->dir.fd, name, 0);
    return status;
}

/* ---- room ---- */

static uint64_t made_bytes(const struct ssd_files *files)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < files->file_count; i++)
        if (atomic_load_explicit(&files->files[i].fd, memory_order_relaxed) >= 0)
            bytes += file_bytes(files, i);
    return bytes;
}

/* Whether bytes more may be taken now. -ENOSPC: no. */
static int check_room(const struct ssd_files *files, uint64_t bytes)
{
    struct ssd_usage usage;
    uint64_t free_bytes;
    int status = ssd_dir_usage(&files->dir, &usage);

    if (status == 0)
        status = ssd_dir_free_bytes(&files->dir, &free_bytes);
    if (status < 0)
        return status;
    return SSD_ERA_FILE_BYTES + made_bytes(files) + usage.kept_bytes + usage.unused_bytes + bytes <=
                       files->quota_bytes &&
                   free_bytes >= bytes + files->reserve_bytes
               ? 0
               : -ENOSPC;
}

static int make_room(const struct ssd_files *files, uint64_t bytes)
{
    int status;

    do
        status = check_room(files, bytes);
    while (status == -ENOSPC && ssd_dir_drop_unused(&files->dir) == 0);
    return status;
}

/* The next slot file's name, and its number. NULL: no more. */
static const char *next_file(DIR *stream, uint32_t *number)
{
    const struct dirent *entry;

    do
        entry = readdir(stream);
    while (entry != NULL && !ssd_slot_file_number(entry->d_name, number));
    return entry != NULL ? entry->d_name : NULL;
}

/* What this layout's files take already. */
static uint64_t bytes_there(const struct ssd_files *files)
{
    DIR *stream = ssd_dir_list(files->dir.fd);
    uint64_t bytes = 0;
    const char *name;
    uint32_t number;

    while (stream != NULL && (name = next_file(stream, &number)) != NULL) {
        struct stat stat;

        if (fstatat(files->dir.fd, name, &stat, AT_SYMLINK_NOFOLLOW) == 0)
            bytes += ssd_stat_bytes(&stat);
    }
    if (stream != NULL)
        (void)closedir(stream);
    return bytes;
}

static int settle_slot_count(struct ssd_files *files, const char *path, char why[TIER_WHY_BYTES])
{
    struct ssd_usage usage;
    uint64_t free_bytes, room, quota, count, count_max;
    int status = ssd_dir_usage(&files->dir, &usage);

    if (status == 0)
        status = ssd_dir_free_bytes(&files->dir, &free_bytes);
    if (status < 0) {
        return ssd_refuse_errno(path, "cannot be looked into", status, why);
    }
    quota = less(files->quota_bytes, usage.kept_bytes);
    room = less(free_bytes + bytes_there(files) + usage.unused_bytes, files->reserve_bytes);
    room = room < quota ? room : quota;
    count = slots_in_room(files, less(room - room / BOOKKEEPING_PART, SSD_ERA_FILE_BYTES));
    if (count == 0) {
        snprintf(why, TIER_WHY_BYTES,
                 "%.100s: no room for one page: quota %" PRIu64 " bytes, of which %" PRIu64
                 " are other files', free %" PRIu64 ", reserve %" PRIu64,
                 path, files->quota_bytes, usage.kept_bytes, free_bytes, files->reserve_bytes);
        return -ENOSPC;
    }
    count_max = (uint64_t)FILE_COUNT_MAX * files->slots_per_file;
    if (count_max >= UINT32_MAX)
        count_max = UINT32_MAX - 1;
    files->slot_count = (uint32_t)(count < count_max ? count : count_max);
    return 0;
}

/* ---- all of them ---- */

/* Slot files beyond the last one: the quota was larger once. */
static void remove_beyond(const struct ssd_files *files)
{
    DIR *stream = ssd_dir_list(files->dir.fd);
    const char *name;
    uint32_t number;

    while (stream != NULL && (name = next_file(stream, &number)) != NULL)
        if (number >= files->file_count)
            (void)unlinkat(files->dir.fd, name, 0);
    if (stream != NULL)
        (void)closedir(stream);
}

/* By a file that is made for it and gone again: 0 or 1; -errno: nobody can tell. */
static int has_direct(const struct ssd_files *files)
{
    const int flags = O_RDWR | O_CREAT | O_DIRECT | O_NOFOLLOW | O_CLOEXEC;
    int fd = openat(files->dir.fd, "direct", flags, S_IRUSR | S_IWUSR);

    if (fd < 0 && ssd_is_want_of_descriptors(errno))
        return -errno;
    if (fd >= 0)
        close(fd);
    (void)unlinkat(files->dir.fd, "direct", 0);
    return fd >= 0;
}

static int open_all(struct ssd_files *files, const struct tier_ssd_config *config,
                    char why[TIER_WHY_BYTES])
{
    int status = config->may_use_direct ? has_direct(files) : 0;

    files->is_direct = status > 0;
    if (status < 0)
        return ssd_refuse_errno(config->dir, "cannot be tried", status, why);
    status = 0;
    files->file_count = (uint32_t)(((uint64_t)files->slot_count + files->slots_per_file - 1) /
                                   files->slots_per_file);
    assert(files->file_count <= FILE_COUNT_MAX);
    files->files = calloc(files->file_count, sizeof *files->files);
    if (files->files == NULL)
        return -ENOMEM;
    for (uint32_t i = 0; i < files->file_count; i++)
        atomic_init(&files->files[i].fd, -1);
    remove_beyond(files);
    for (uint32_t i = 0; status == 0 && i < files->file_count; i++)
        status = open_file(files, i);
    return status < 0
               ? ssd_refuse_errno(config->dir, "its slot files cannot be opened", status, why)
               : 0;
}

int ssd_files_open(const struct tier_ssd_config *config, struct ssd_files **opened,
                   char why[TIER_WHY_BYTES])
{
    struct ssd_files *files = calloc(1, sizeof *files);
    int status;

    assert(config->page_bytes > 0);
    if (files == NULL)
        return -ENOMEM;
    files->quota_bytes = config->bytes;
    files->reserve_bytes = config->reserve_bytes;
    files->slot_bytes = TIER_ALIGN_BYTES + tier_stride_bytes(config->page_bytes);
    files->slots_per_file =
        slots_per_file(config->file_bytes > 0 ? config->file_bytes : FILE_BYTES, files->slot_bytes);
    (void)pthread_mutex_init(&files->mutex, NULL);
    status = ssd_dir_open(&files->dir, config->dir, config->layout, why);
    if (status == 0)
        status = settle_slot_count(files, config->dir, why);
    if (status == 0)
        status = open_all(files, config, why);
    if (status < 0)
        ssd_files_close(&files);
    *opened = files;
    return status;
}

uint32_t ssd_files_slot_count(const struct ssd_files *files)
{
    return files->slot_count;
}

bool ssd_files_are_direct(const struct ssd_files *files)
{
    return files->is_direct;
}

bool ssd_files_find(const struct ssd_files *files, uint32_t slot, struct ssd_place *place)
{
    const struct ssd_file *file;
    uint32_t in_file;

    assert(slot < files->slot_count);

    file = &files->files[slot / files->slots_per_file];
    place->fd = atomic_load_explicit(&file->fd, memory_order_acquire);
    if (place->fd < 0)
        return false;
    place->direct_fd = file->direct_fd;
    in_file = slot % files->slots_per_file;
    place->offset = bytes_of_slots(in_file + UINT64_C(1), files->slot_bytes) - files->slot_bytes;
    return true;
}

uint32_t ssd_files_list_of(const struct ssd_files *files, uint32_t slot, unsigned *at)
{
    const uint32_t in_file = slot % files->slots_per_file;

    assert(slot < files->slot_count);

    *at = in_file % SLOT_LIST_SLOTS;
    return slot / files->slots_per_file * lists_per_file(files) + in_file / SLOT_LIST_SLOTS;
}

uint32_t ssd_files_list_slot(const struct ssd_files *files, uint32_t list, unsigned at)
{
    const uint64_t in_file = (uint64_t)(list % lists_per_file(files)) * SLOT_LIST_SLOTS + at;
    const uint64_t slot =
        (uint64_t)(list / lists_per_file(files)) * files->slots_per_file + in_file;

    return in_file < files->slots_per_file && slot < files->slot_count ? (uint32_t)slot
                                                                       : UINT32_MAX;
}

bool ssd_files_is_cut(const struct ssd_files *files, uint32_t slot)
{
    const uint32_t in_file = slot % files->slots_per_file;

    return bytes_of_slots(in_file + UINT64_C(1), files->slot_bytes) >
           files->files[slot / files->slots_per_file].found_bytes;
}

uint32_t ssd_files_list_count(const struct ssd_files *files)
{
    unsigned at;

    return ssd_files_list_of(files, files->slot_count - 1, &at) + 1;
}

bool ssd_files_find_list(const struct ssd_files *files, uint32_t list, struct ssd_place *place)
{
    const uint32_t in_file = list % lists_per_file(files);

    if (!ssd_files_find(files, ssd_files_list_slot(files, list, 0), place))
        return false;
    place->offset = bytes_of_slots((uint64_t)in_file * SLOT_LIST_SLOTS, files->slot_bytes);
    return true;
}

int ssd_files_dir_fd(const struct ssd_files *files)
{
    return files->dir.fd;
}

int ssd_files_make(struct ssd_files *files, uint32_t slot, struct ssd_place *place)
{
    uint32_t number = slot / files->slots_per_file;
    int status = 0;

    if (ssd_files_find(files, slot, place))
        return 0;
    (void)pthread_mutex_lock(&files->mutex);
    if (!ssd_files_find(files, slot, place)) {
        status = make_room(files, file_bytes(files, number));
        if (status == 0)
            status = create_file(files, number);
    }
    (void)pthread_mutex_unlock(&files->mutex);
    if (status == 0 && !ssd_files_find(files, slot, place))
        assert(!"just made");
    return ssd_write_status(status);
}

void ssd_files_close(struct ssd_files **opened)
{
    struct ssd_files *files = *opened;

    *opened = NULL;
    if (files == NULL)
        return;
    for (uint32_t i = 0; files->files != NULL && i < files->file_count; i++) {
        int fd = atomic_load(&files->files[i].fd);

        if (fd >= 0 && files->files[i].direct_fd >= 0)
            close(files->files[i].direct_fd);
        if (fd >= 0)
            close(fd);
    }
    ssd_dir_close(&files->dir);
    (void)pthread_mutex_destroy(&files->mutex);
    free(files->files);
    free(files);
}
