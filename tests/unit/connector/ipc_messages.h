/* SPDX-License-Identifier: Apache-2.0 */

/* ipc_messages: one message of each kind, with every field set, and its bytes. */
#ifndef TESTS_UNIT_CONNECTOR_IPC_MESSAGES_H
#define TESTS_UNIT_CONNECTOR_IPC_MESSAGES_H

#include "kvtier/connector/ipc_wire.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

enum { BUF_BYTES_MAX = 1 << 20 };

static const uint8_t two_numbers[] = {1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff};

/* What lists in messages are written into; release it at the end. */
struct ipc_parts {
    struct buf regions;
    struct buf segments;
    struct buf entries;
};

static inline void ipc_parts_init(struct ipc_parts *parts)
{
    const struct ipc_region region = {.bytes = 4096, .offset = 512, .handle = {[0] = 7, [63] = 9}};
    const struct page_segment segments[] = {
        {.region = 0, .offset = 1, .stride = 64, .bytes = 32},
        {.region = 0, .offset = UINT64_MAX, .stride = 65, .bytes = 33}};
    const struct ipc_save_entry entries[] = {{.request = 5,
                                              .first_block = 3,
                                              .block_count = 2,
                                              .engine_blocks = slice_of(two_numbers, 8)},
                                             {.request = 6, .first_block = 0, .block_count = 0},
                                             {.request = 7,
                                              .first_block = 1,
                                              .block_count = 1,
                                              .engine_blocks = slice_of(two_numbers, 4)}};

    buf_init(&parts->regions, BUF_BYTES_MAX);
    buf_init(&parts->segments, BUF_BYTES_MAX);
    buf_init(&parts->entries, BUF_BYTES_MAX);
    cr_assert(zero(int, ipc_region_write(&parts->regions, &region)));
    for (size_t i = 0; i < 2; i++)
        cr_assert(zero(int, ipc_segment_write(&parts->segments, &segments[i])));
    for (size_t i = 0; i < 3; i++)
        cr_assert(zero(int, ipc_save_entry_write(&parts->entries, &entries[i])));
}

static inline void ipc_parts_release(struct ipc_parts *parts)
{
    buf_release(&parts->regions);
    buf_release(&parts->segments);
    buf_release(&parts->entries);
}

static const enum ipc_kind ipc_kinds[] = {
    IPC_HELLO,   IPC_OPEN,  IPC_TOKENS, IPC_LOOKUP, IPC_TAKE, IPC_CLOSE,
    IPC_RESET,   IPC_LOAD,  IPC_SAVE,   IPC_PING,   IPC_DONE, IPC_WELCOME,
    IPC_REFUSED, IPC_FOUND, IPC_LOADED, IPC_SAVED,  IPC_PONG,
};
enum { IPC_KIND_COUNT = sizeof ipc_kinds / sizeof ipc_kinds[0] };

/* A message of that kind; its lists lie in parts. */
static inline struct ipc_message ipc_message_of(enum ipc_kind kind, const struct ipc_parts *parts)
{
    struct ipc_message message = {.kind = kind, .boot = 0x1122334455667788};

    switch (kind) {
    case IPC_HELLO:
        message.as.hello = (struct ipc_hello){
            .role = IPC_WORKER,
            .device = DEVICE_CUDA,
            .rank = 1,
            .rank_count = 2,
            .region_count = 1,
            .segment_count = 2,
            .block_count = 1000,
            .block_tokens = 16,
            .engine_id = {1, 2, 3},
            .uuid = {[15] = 4},
            .event_handle = {[63] = 5},
            .worker = SLICE("http://10.0.0.1:8000"),
            .model = SLICE("tiny float32"),
            .version = SLICE("0.32.0"),
            .regions = buf_slice(&parts->regions),
            .segments = buf_slice(&parts->segments),
        };
        break;
    case IPC_OPEN:
        message.as.open = (struct ipc_open){.request = 1,
                                            .prompt_tokens = 100,
                                            .id = SLICE("chatcmpl-1"),
                                            .lora = SLICE("l"),
                                            .salt = SLICE(""),
                                            .tokens = slice_of(two_numbers, 8),
                                            .token_count = 2};
        break;
    case IPC_TOKENS:
        message.as.tokens = (struct ipc_tokens){
            .request = 1, .first = 2, .token_count = 2, .tokens = slice_of(two_numbers, 8)};
        break;
    case IPC_LOOKUP:
        message.as.lookup = (struct ipc_lookup){.request = 1, .local_tokens = 32};
        break;
    case IPC_TAKE:
        message.as.take = (struct ipc_take){.request = 1, .first_block = 2, .block_count = 3};
        break;
    case IPC_CLOSE:
    case IPC_RESET:
    case IPC_DONE:
    case IPC_PING:
    case IPC_PONG:
        message.as.number.number = 0x0102030405060708;
        break;
    case IPC_LOAD:
        message.as.load = (struct ipc_load){.job = 1,
                                            .request = 2,
                                            .first_block = 3,
                                            .block_count = 2,
                                            .engine_blocks = slice_of(two_numbers, 8)};
        break;
    case IPC_SAVE:
        message.as.save = (struct ipc_save){.job = 1,
                                            .entry_count = 3,
                                            .step_tokens = 512,
                                            .step_us = 60000,
                                            .entries = buf_slice(&parts->entries)};
        break;
    case IPC_WELCOME:
        message.as.welcome = (struct ipc_welcome){
            .lease_ms = 30000, .lookup_ms = 2, .save_ms = 500, .version = SLICE("samovar 1")};
        break;
    case IPC_REFUSED:
        message.as.refused =
            (struct ipc_refused){.code = IPC_REFUSED_BUSY, .text = SLICE("too many")};
        break;
    case IPC_FOUND:
        message.as.found = (struct ipc_found){
            .request = 1, .tokens = 64, .later_ms = 10, .why = IPC_FOUND_NO_ROOM};
        break;
    case IPC_LOADED:
        message.as.loaded = (struct ipc_loaded){.job = 1, .block_count = 2};
        break;
    case IPC_SAVED:
        message.as.saved = (struct ipc_saved){.job = 1, .saved = 2, .known = 3, .refused = 4};
        break;
    }
    return message;
}

#endif
