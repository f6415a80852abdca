/* SPDX-License-Identifier: Apache-2.0 */

/*
 * kv_recording: the recorded ZeroMQ messages of tests/fixtures/vllm-0.32.0/kv, one after the other.
 */
#ifndef TESTS_SUPPORT_KV_RECORDING_H
#define TESTS_SUPPORT_KV_RECORDING_H

#include <criterion/criterion.h>

#include <stdint.h>
#include <stdio.h>

#include "backends/runtime/slice.h"

enum { KV_RECORDING_BYTES_MAX = 64 << 10, KV_RECORDING_FRAME_COUNT_MAX = 4 };

struct kv_recording {
    char bytes[KV_RECORDING_BYTES_MAX];
    struct slice rest;
};

/* A message's frames; they point into the recording. */
struct kv_frames {
    struct slice frames[KV_RECORDING_FRAME_COUNT_MAX];
    size_t count;
};

/* name has its ending: .frames or .jsonl. */
static inline void kv_recording_open(struct kv_recording *recording, const char *name)
{
    char path[512];
    FILE *file;

    snprintf(path, sizeof path, "%s/fixtures/vllm-0.32.0/kv/%s", TESTS_DIR, name);
    file = fopen(path, "rb");
    cr_assert(file != NULL, "%s", path);
    recording->rest =
        slice_of(recording->bytes, fread(recording->bytes, 1, sizeof recording->bytes, file));
    fclose(file);
    cr_assert(recording->rest.len < sizeof recording->bytes, "%s is longer", path);
}

static inline size_t kv_recording_take_length(struct kv_recording *recording)
{
    uint32_t length = 0;

    cr_assert(recording->rest.len >= 4);
    for (size_t i = 4; i-- > 0;)
        length = length << 8 | (uint8_t)recording->rest.ptr[i];
    recording->rest = slice_skip(recording->rest, 4);
    return length;
}

/* false at the end. */
static inline bool kv_recording_next(struct kv_recording *recording, struct kv_frames *message)
{
    if (recording->rest.len == 0)
        return false;
    message->count = kv_recording_take_length(recording);
    cr_assert(message->count <= KV_RECORDING_FRAME_COUNT_MAX);
    for (size_t i = 0; i < message->count; i++) {
        size_t len = kv_recording_take_length(recording);

        cr_assert(len <= recording->rest.len);
        message->frames[i] = (struct slice){recording->rest.ptr, len};
        recording->rest = slice_skip(recording->rest, len);
    }
    return true;
}

#endif
