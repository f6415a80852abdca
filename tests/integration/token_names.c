/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Prints the cluster's fingerprint and the names of the token blocks of a prompt, as who knows the
 * secret makes them, for tests that play a router to a real agent:
 *
 *   samovar-token-names SECRET_FILE BLOCK_TOKENS [SALT [LORA]] < token ids, as text
 *
 * First line: the fingerprint; then .low of each full block, in hexadecimal.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hashing/fingerprint.h"
#include "hashing/stream_identity.h"
#include "hashing/token_name.h"

enum { SECRET_BYTES_MAX = 4096, BLOCK_TOKENS_MAX = 4096 };

static void read_secret(const char *path, uint8_t secret[DIGEST_SECRET_BYTES])
{
    char bytes[SECRET_BYTES_MAX];
    FILE *file = fopen(path, "rb");
    size_t len;

    if (file == NULL) {
        perror(path);
        exit(1);
    }
    len = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    digest_secret_derive(secret, bytes, len);
}

int main(int argc, char **argv)
{
    static uint32_t ids[BLOCK_TOKENS_MAX];
    uint8_t secret[DIGEST_SECRET_BYTES];
    const char *salt = argc > 3 && argv[3][0] != '\0' ? argv[3] : NULL;
    const char *lora = argc > 4 ? argv[4] : NULL;
    unsigned long block_tokens = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
    struct digest_128 name;
    size_t count = 0;

    if (argc < 3 || block_tokens == 0 || block_tokens > BLOCK_TOKENS_MAX) {
        fputs("samovar-token-names SECRET_FILE BLOCK_TOKENS [SALT [LORA]] < ids\n", stderr);
        return 2;
    }
    read_secret(argv[1], secret);
    printf("%016" PRIx64 "\n", fingerprint((struct block_chain_config){secret, STREAM_BLOCK_BYTES,
                                                                       STREAM_CUT_BYTES_MIN},
                                           STREAM_VERSION));
    name = token_name_root(secret, lora, lora != NULL ? strlen(lora) : 0, salt,
                           salt != NULL ? strlen(salt) : 0);
    while (scanf("%" SCNu32, &ids[count]) == 1) {
        if (++count < block_tokens)
            continue;
        name = token_name_next(secret, name, ids, count, 0);
        printf("%016" PRIx64 "\n", name.low);
        count = 0;
    }
    return 0;
}
