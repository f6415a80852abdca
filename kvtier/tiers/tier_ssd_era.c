/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/tier_ssd_era.h"

#include "backends/runtime/file_replace.h"
#include "hashing/checksum.h"
#include "hashing/little_endian.h"
#include "kvtier/tiers/tier_ssd_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * DESIGN
 *
 *   DIR/layout-<fingerprint>/era    0 magic  8 version  12 zero  16 layout  24 era
 *                                  32 checksum of bytes 0 to 31
 *
 * An era is drawn by chance, so nothing hangs on clocks or on what came before: slots of another
 * era, of a file that was lost, or of an older format that has no eras count for nothing.
 *
 * Slots are not synced, but this is: a power cut that brought the old file back would bring back
 * slots that somebody was told are forgotten.
 */

enum { AT_VERSION = 8, AT_LAYOUT = 16, AT_ERA = 24, AT_CHECKSUM = 32, ERA_BYTES = 40, VERSION = 1 };

static const char name[] = "era", new_name[] = "era.new";
static const char magic[8] = {'s', 'm', 'v', '-', 'e', 'r', 'a', '\0'};

bool ssd_era_is_name(const char *other)
{
    return strcmp(other, name) == 0 || strcmp(other, new_name) == 0;
}

static void encode(uint64_t layout, uint64_t era, uint8_t bytes[ERA_BYTES])
{
    memset(bytes, 0, ERA_BYTES);
    memcpy(bytes, magic, sizeof magic);
    put_little(bytes + AT_VERSION, 4, VERSION);
    put_little(bytes + AT_LAYOUT, 8, layout);
    put_little(bytes + AT_ERA, 8, era);
    put_little(bytes + AT_CHECKSUM, 8, checksum(bytes, AT_CHECKSUM));
}

int ssd_era_read(int dir_fd, uint64_t layout, uint64_t *era)
{
    uint8_t bytes[ERA_BYTES + 1], expected[ERA_BYTES];
    int fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat stat;
    ssize_t len;

    if (fd < 0)
        return errno == ELOOP ? -EBADMSG : -errno;
    if (fstat(fd, &stat) < 0 || !ssd_is_ours_alone(&stat)) {
        close(fd);
        return -EBADMSG;
    }
    len = pread(fd, bytes, sizeof bytes, 0);
    close(fd);
    if (len < 0)
        return -EIO;
    *era = get_little(bytes + AT_ERA, 8);
    encode(layout, *era, expected);
    return len == ERA_BYTES && *era != 0 && memcmp(bytes, expected, ERA_BYTES) == 0 ? 0 : -EBADMSG;
}

int ssd_era_write(int dir_fd, uint64_t layout, uint64_t era)
{
    uint8_t bytes[ERA_BYTES];

    encode(layout, era, bytes);
    return file_replace(dir_fd, name, slice_of(bytes, sizeof bytes));
}

int ssd_era_remove(int dir_fd)
{
    if (unlinkat(dir_fd, name, 0) < 0 && errno != ENOENT)
        return -errno;
    return fsync(dir_fd) < 0 ? -errno : 0;
}
