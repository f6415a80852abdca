/* SPDX-License-Identifier: Apache-2.0 */

#include "router/worker_key.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_BYTES_MAX = 4096 };

static const char prefix[] = "Bearer ";

/* What a header may carry without ending it; a space would be two keys. */
static bool is_printable(const char *key)
{
    for (; *key != '\0'; key++) {
        if (*key <= ' ' || *key > '~')
            return false;
    }
    return true;
}

static int read_line(const char *path, char *line, size_t size)
{
    FILE *file = fopen(path, "re");
    int status = 0;

    if (file == NULL)
        return -errno;
    /* Unbuffered: no copy of the key is left in a buffer of stdio. */
    setvbuf(file, NULL, _IONBF, 0);
    if (fgets(line, (int)size, file) == NULL)
        status = ferror(file) ? -EIO : -EINVAL;
    fclose(file);
    return status;
}

int worker_key_read(const char *path, char **authorization, char why[256])
{
    size_t size = sizeof prefix + KEY_BYTES_MAX;
    char *text;
    int status;

    *authorization = NULL;
    if (*path == '\0')
        return 0;
    text = calloc(1, size);
    if (text == NULL)
        abort(); /* at boot */
    memcpy(text, prefix, sizeof prefix);
    status = read_line(path, text + sizeof prefix - 1, KEY_BYTES_MAX);
    if (status == 0) {
        char *key = text + sizeof prefix - 1;

        key[strcspn(key, "\r\n")] = '\0';
        if (*key == '\0' || !is_printable(key))
            status = -EINVAL;
    }
    if (status < 0) {
        snprintf(why, 256, "worker-api-key-file %.120s: %s", path,
                 status == -EINVAL ? "its first line must be the key, in printable characters"
                                   : strerror(-status));
        worker_key_forget(&text);
    }
    *authorization = text;
    return status;
}

void worker_key_forget(char **authorization)
{
    if (*authorization != NULL) {
        explicit_bzero(*authorization, strlen(*authorization));
        free(*authorization);
    }
    *authorization = NULL;
}
