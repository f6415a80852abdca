/* SPDX-License-Identifier: Apache-2.0 */

/*
 * recording: the body of a recorded HTTP message in tests/fixtures, chunked framing taken off.
 */
#ifndef TESTS_SUPPORT_RECORDING_H
#define TESTS_SUPPORT_RECORDING_H

#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/runtime/buf.h"

static inline void recording_read_file(struct buf *file, const char *folder, const char *name)
{
    char path[512], piece[4096];
    size_t len;
    FILE *in;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    in = fopen(path, "rb");
    cr_assert(in != NULL, "%s", path);
    while ((len = fread(piece, 1, sizeof piece, in)) > 0)
        cr_assert(buf_append(file, slice_of(piece, len)) == 0);
    fclose(in);
}

static inline void recording_unchunk(struct buf *body, struct slice chunks)
{
    char *end;

    for (;;) {
        size_t len = strtoul(chunks.ptr, &end, 16);

        if (len == 0)
            return;
        chunks = slice_skip(chunks, (size_t)(end - chunks.ptr) + 2);
        cr_assert(buf_append(body, slice_of(chunks.ptr, len)) == 0);
        chunks = slice_skip(chunks, len + 2);
    }
}

/* Inits body and fills it. */
static inline void recording_read(struct buf *body, const char *folder, const char *name)
{
    struct buf file;
    struct slice bytes;
    const char *head_end;
    bool is_chunked;

    buf_init(&file, 1 << 20);
    buf_init(body, 1 << 20);
    recording_read_file(&file, folder, name);
    cr_assert(buf_append(&file, slice_of("", 1)) == 0); /* for the string functions below */
    bytes = buf_slice(&file);
    head_end = strstr(bytes.ptr, "\r\n\r\n");
    cr_assert(head_end != NULL, "%s", name);
    is_chunked = strstr(bytes.ptr, "transfer-encoding: chunked") != NULL;
    bytes = slice_skip(bytes, (size_t)(head_end + 4 - bytes.ptr));
    if (is_chunked)
        recording_unchunk(body, bytes);
    else
        cr_assert(buf_append(body, slice_of(bytes.ptr, bytes.len - 1)) == 0);
    buf_release(&file);
}

#endif
