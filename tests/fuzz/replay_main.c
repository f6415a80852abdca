/* SPDX-License-Identifier: Apache-2.0 */

/*
 * replay_main: a main() for fuzz programs built without libFuzzer: runs every file of the folders
 * given, whole and cut in half, so that a corpus is an ordinary test.
 */
#include "tests/fuzz/fuzz_input.h"

#include <dirent.h>
#include <stdio.h>

enum { PATH_LEN_MAX = 4096, FILE_BYTES_MAX = 1 << 20 };

/* A buffer of exactly size bytes, so that the address sanitizer sees a read past the end. */
static void run_exactly(const uint8_t *bytes, size_t size)
{
    uint8_t *copy = malloc(size > 0 ? size : 1);

    if (copy == NULL)
        abort();
    memcpy(copy, bytes, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static int run_file(const char *path)
{
    static uint8_t bytes[FILE_BYTES_MAX];
    FILE *file = fopen(path, "rb");
    size_t size;

    if (file == NULL) {
        perror(path);
        return -1;
    }
    size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    run_exactly(bytes, size);
    run_exactly(bytes, size / 2); /* and cut short, as networks do */
    return 0;
}

/* Returns how many files were run; -1: one could not be read. */
static int run_folder(const char *folder)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;
    char path[PATH_LEN_MAX];
    int count = 0;

    if (dir == NULL) {
        perror(folder);
        return -1;
    }
    while (count >= 0 && (entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        count = run_file(path) == 0 ? count + 1 : -1;
    }
    closedir(dir);
    return count;
}

int main(int argc, char **argv)
{
    int total = 0;

    for (int i = 1; i < argc; i++) {
        int count = run_folder(argv[i]);

        if (count < 0)
            return 1;
        total += count;
    }
    printf("%d inputs\n", total);
    return total > 0 ? 0 : 1; /* a corpus that is gone must not pass */
}
