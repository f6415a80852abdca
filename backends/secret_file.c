/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/secret_file.h"

int secret_file_read(uint8_t secret[DIGEST_SECRET_BYTES], const char *path,
                     char why[PRIVATE_FILE_WHY_BYTES])
{
    struct private_file file;
    int status = private_file_read(&file, "secret-file", path, why);

    if (status < 0)
        return status;
    digest_secret_derive(secret, file.bytes, file.len);
    private_file_release(&file);
    return 0;
}
