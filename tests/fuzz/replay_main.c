/* SPDX-License-Identifier: Apache-2.0 */

/*
 * replay_main: gives every file of the named folders to LLVMFuzzerTestOneInput, once, so that
 * what a fuzzer once found stays found, with any compiler and without libFuzzer.
 */

#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

/* The input lies in an allocation of exactly its size, so that a sanitizer sees one byte past. */
static int replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return -1;
    }
    long size = ftell(file);
    rewind(file);
    uint8_t *bytes = malloc(size > 0 ? (size_t)size : 1);
    if (size < 0 || bytes == NULL || fread(bytes, 1, (size_t)size, file) != (size_t)size) {
        fprintf(stderr, "%s: cannot be read\n", path);
        fclose(file);
        free(bytes);
        return -1;
    }
    fclose(file);
    printf("%s (%ld bytes)\n", path, size);
    fflush(stdout); /* the name must be out before the input can crash us */
    int status = LLVMFuzzerTestOneInput(bytes, (size_t)size);
    free(bytes);
    return status;
}

/* Returns how many files ran, or -1. */
static int replay_folder(const char *folder)
{
    DIR *dir = opendir(folder);
    if (dir == NULL) {
        fprintf(stderr, "%s: %s\n", folder, strerror(errno));
        return -1;
    }
    int count = 0;
    int status = 0;
    for (struct dirent *entry = readdir(dir); entry != NULL && status == 0; entry = readdir(dir)) {
        if (entry->d_name[0] == '.')
            continue;
        char path[4096];
        int len = snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        status = len < (int)sizeof path ? replay_file(path) : -1;
        count++;
    }
    closedir(dir);
    return status == 0 ? count : -1;
}

/* An empty corpus is a failure: it would look like a pass. */
int main(int argc, char **argv)
{
    int count = 0;
    for (int i = 1; i < argc; i++) {
        int replayed = replay_folder(argv[i]);
        if (replayed < 0)
            return 1;
        count += replayed;
    }
    printf("%d inputs\n", count);
    return count > 0 ? 0 : 1;
}
