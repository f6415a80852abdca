/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/connector/ipc_wire.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/*
 * DESIGN
 *
 * One function for each kind names its fields in the order of the wire, and serves both ways: what
 * is written cannot differ from what is read. A wire is a cursor that either takes fields off what
 * came or appends them to what goes, and remembers the first thing that went wrong; after that its
 * calls do nothing, so no function here needs an exit in its middle.
 *
 * What is spare is written as 0 and must be read as 0: whatever is to be said there one day raises
 * the version. So a message has one spelling, and one that was read is written back as the same
 * bytes. Counts are believed only where their bytes are there.
 */

enum { LENGTH_AT = 4, REGION_BYTES = 16 + DEVICE_HANDLE_BYTES, SEGMENT_BYTES = 32 };

struct wire {
    struct buf *out;   /* NULL: reading */
    struct slice rest; /* reading: what was not taken yet */
    int status;        /* negative: what went wrong first */
};

/* ---- fields ---- */

static void fail(struct wire *wire, int status)
{
    if (wire->status == 0)
        wire->status = status;
}

/* Whether what was read may go on: writing, nothing that we say is doubted. */
static void expect(struct wire *wire, bool holds)
{
    if (!holds)
        fail(wire, -EPROTO);
}

static void pass_bytes(struct wire *wire, void *bytes, size_t len)
{
    if (wire->status < 0)
        return;
    if (wire->out != NULL) {
        fail(wire, buf_append(wire->out, slice_of(bytes, len)));
    } else if (wire->rest.len < len) {
        fail(wire, -EPROTO);
    } else {
        memcpy(bytes, wire->rest.ptr, len);
        wire->rest = slice_skip(wire->rest, len);
    }
}

static uint64_t pass(struct wire *wire, uint64_t value, size_t width)
{
    uint8_t bytes[8] = {0};

    for (size_t i = 0; i < width; i++)
        bytes[i] = (uint8_t)(value >> 8 * i);
    pass_bytes(wire, bytes, width);
    value = 0;
    for (size_t i = width; i-- > 0;)
        value = value << 8 | bytes[i];
    return value;
}

static void pass_u16(struct wire *wire, uint16_t *value)
{
    *value = (uint16_t)pass(wire, *value, 2);
}

static void pass_u32(struct wire *wire, uint32_t *value)
{
    *value = (uint32_t)pass(wire, *value, 4);
}

static void pass_u64(struct wire *wire, uint64_t *value)
{
    *value = pass(wire, *value, 8);
}

static void pass_spare(struct wire *wire, size_t width)
{
    expect(wire, pass(wire, 0, width) == 0);
}

/* One of first to last, both included. */
static unsigned pass_choice(struct wire *wire, unsigned value, size_t width, unsigned first,
                            unsigned last)
{
    value = (unsigned)pass(wire, value, width);
    expect(wire, value >= first && value <= last);
    return value;
}

/* len bytes that stay where they are. */
static void pass_slice(struct wire *wire, struct slice *slice, size_t len)
{
    if (wire->status < 0)
        return;
    if (wire->out != NULL) {
        assert(slice->len == len);
        fail(wire, buf_append(wire->out, *slice));
    } else if (wire->rest.len < len) {
        fail(wire, -EPROTO);
    } else {
        *slice = (struct slice){wire->rest.ptr, len};
        wire->rest = slice_skip(wire->rest, len);
    }
}

static void pass_text(struct wire *wire, struct slice *text)
{
    uint16_t len = (uint16_t)text->len;

    if (text->len > IPC_TEXT_BYTES_MAX)
        fail(wire, -EMSGSIZE);
    pass_u16(wire, &len);
    expect(wire, len <= IPC_TEXT_BYTES_MAX);
    pass_slice(wire, text, len);
}

static void pass_count(struct wire *wire, uint32_t *count, uint32_t max)
{
    if (wire->out != NULL && *count > max)
        fail(wire, -EMSGSIZE);
    pass_u32(wire, count);
    expect(wire, *count <= max);
}

static void pass_numbers(struct wire *wire, struct slice *numbers, uint32_t count)
{
    pass_slice(wire, numbers, (size_t)count * 4);
}

/* ---- parts ---- */

static void pass_region(struct wire *wire, struct ipc_region *region)
{
    pass_u64(wire, &region->bytes);
    pass_u64(wire, &region->offset);
    pass_bytes(wire, region->handle, sizeof region->handle);
}

static void pass_segment(struct wire *wire, struct page_segment *segment)
{
    pass_u32(wire, &segment->region);
    pass_spare(wire, 4);
    pass_u64(wire, &segment->offset);
    pass_u64(wire, &segment->stride);
    pass_u64(wire, &segment->bytes);
}

static void pass_save_entry(struct wire *wire, struct ipc_save_entry *entry)
{
    pass_u64(wire, &entry->request);
    pass_u32(wire, &entry->first_block);
    pass_count(wire, &entry->block_count, IPC_BLOCK_COUNT_MAX);
    pass_numbers(wire, &entry->engine_blocks, entry->block_count);
}

/* ---- kinds ---- */

static void pass_hello(struct wire *wire, struct ipc_hello *hello)
{
    hello->role =
        (enum ipc_role)pass_choice(wire, (unsigned)hello->role, 1, IPC_SCHEDULER, IPC_WORKER);
    hello->device =
        (enum device_kind)pass_choice(wire, (unsigned)hello->device, 1, DEVICE_HOST, DEVICE_CUDA);
    pass_u16(wire, &hello->rank);
    pass_u16(wire, &hello->rank_count);
    pass_u16(wire, &hello->region_count);
    expect(wire, hello->region_count <= PAGE_REGION_COUNT_MAX);
    pass_count(wire, &hello->segment_count, PAGE_SEGMENT_COUNT_MAX);
    pass_u32(wire, &hello->block_count);
    pass_u32(wire, &hello->block_tokens);
    pass_bytes(wire, hello->engine_id, sizeof hello->engine_id);
    pass_bytes(wire, hello->uuid, sizeof hello->uuid);
    pass_bytes(wire, hello->event_handle, sizeof hello->event_handle);
    pass_text(wire, &hello->worker);
    pass_text(wire, &hello->model);
    pass_text(wire, &hello->version);
    pass_slice(wire, &hello->regions, (size_t)hello->region_count * REGION_BYTES);
    pass_slice(wire, &hello->segments, (size_t)hello->segment_count * SEGMENT_BYTES);
}

static void pass_open(struct wire *wire, struct ipc_open *open)
{
    pass_u64(wire, &open->request);
    pass_u32(wire, &open->prompt_tokens);
    pass_count(wire, &open->token_count, IPC_TOKEN_COUNT_MAX);
    pass_text(wire, &open->id);
    pass_text(wire, &open->lora);
    pass_text(wire, &open->salt);
    pass_numbers(wire, &open->tokens, open->token_count);
}

static void pass_tokens(struct wire *wire, struct ipc_tokens *tokens)
{
    pass_u64(wire, &tokens->request);
    pass_u32(wire, &tokens->first);
    pass_count(wire, &tokens->token_count, IPC_TOKEN_COUNT_MAX);
    pass_numbers(wire, &tokens->tokens, tokens->token_count);
}

static void pass_lookup(struct wire *wire, struct ipc_lookup *lookup)
{
    pass_u64(wire, &lookup->request);
    pass_u32(wire, &lookup->local_tokens);
    pass_spare(wire, 4);
}

static void pass_found(struct wire *wire, struct ipc_found *found)
{
    pass_u64(wire, &found->request);
    pass_u32(wire, &found->tokens);
    pass_u32(wire, &found->later_ms);
    found->why = (enum ipc_found_why)pass_choice(wire, (unsigned)found->why, 1, IPC_FOUND_HIT,
                                                 IPC_FOUND_NO_ROOM);
    pass_spare(wire, 7);
}

static void pass_take(struct wire *wire, struct ipc_take *take)
{
    pass_u64(wire, &take->request);
    pass_u32(wire, &take->first_block);
    pass_u32(wire, &take->block_count);
}

static void pass_load(struct wire *wire, struct ipc_load *load)
{
    pass_u64(wire, &load->job);
    pass_u64(wire, &load->request);
    pass_u32(wire, &load->first_block);
    pass_count(wire, &load->block_count, IPC_BLOCK_COUNT_MAX);
    pass_numbers(wire, &load->engine_blocks, load->block_count);
}

static void pass_loaded(struct wire *wire, struct ipc_loaded *loaded)
{
    pass_u64(wire, &loaded->job);
    pass_u32(wire, &loaded->block_count);
    pass_spare(wire, 4);
}

static void pass_save(struct wire *wire, struct ipc_save *save)
{
    pass_u64(wire, &save->job);
    pass_count(wire, &save->entry_count, IPC_SAVE_ENTRY_COUNT_MAX);
    pass_u32(wire, &save->step_tokens);
    pass_u32(wire, &save->step_us);
    pass_spare(wire, 4);
    if (wire->out != NULL) {
        pass_slice(wire, &save->entries, save->entries.len);
        return;
    }
    save->entries = wire->rest;
    for (uint32_t i = 0; i < save->entry_count && wire->status == 0; i++)
        pass_save_entry(wire, &(struct ipc_save_entry){0});
}

static void pass_saved(struct wire *wire, struct ipc_saved *saved)
{
    pass_u64(wire, &saved->job);
    pass_u32(wire, &saved->saved);
    pass_u32(wire, &saved->known);
    pass_u32(wire, &saved->refused);
    pass_spare(wire, 4);
}

static void pass_welcome(struct wire *wire, struct ipc_welcome *welcome)
{
    pass_u32(wire, &welcome->lease_ms);
    pass_u32(wire, &welcome->lookup_ms);
    pass_u32(wire, &welcome->save_ms);
    pass_spare(wire, 4);
    pass_text(wire, &welcome->version);
}

static void pass_refused(struct wire *wire, struct ipc_refused *refused)
{
    refused->code = (enum ipc_refusal)pass_choice(wire, (unsigned)refused->code, 2,
                                                  IPC_REFUSED_VERSION, IPC_REFUSED_BUSY);
    pass_spare(wire, 2);
    pass_spare(wire, 4);
    pass_text(wire, &refused->text);
}

static void pass_body(struct wire *wire, struct ipc_message *message)
{
    switch (message->kind) {
    case IPC_HELLO:
        pass_hello(wire, &message->as.hello);
        return;
    case IPC_OPEN:
        pass_open(wire, &message->as.open);
        return;
    case IPC_TOKENS:
        pass_tokens(wire, &message->as.tokens);
        return;
    case IPC_LOOKUP:
        pass_lookup(wire, &message->as.lookup);
        return;
    case IPC_TAKE:
        pass_take(wire, &message->as.take);
        return;
    case IPC_CLOSE:
    case IPC_RESET:
    case IPC_DONE:
    case IPC_PING:
    case IPC_PONG:
        pass_u64(wire, &message->as.number.number);
        return;
    case IPC_LOAD:
        pass_load(wire, &message->as.load);
        return;
    case IPC_SAVE:
        pass_save(wire, &message->as.save);
        return;
    case IPC_WELCOME:
        pass_welcome(wire, &message->as.welcome);
        return;
    case IPC_REFUSED:
        pass_refused(wire, &message->as.refused);
        return;
    case IPC_FOUND:
        pass_found(wire, &message->as.found);
        return;
    case IPC_LOADED:
        pass_loaded(wire, &message->as.loaded);
        return;
    case IPC_SAVED:
        pass_saved(wire, &message->as.saved);
        return;
    }
    fail(wire, -EPROTO);
}

/* ---- whole messages ---- */

int ipc_message_read(struct slice bytes, struct ipc_message *message)
{
    struct wire wire = {.rest = bytes};
    unsigned version;
    uint64_t magic, length;

    *message = (struct ipc_message){0};
    magic = pass(&wire, 0, 2);
    version = (unsigned)pass(&wire, 0, 1);
    message->kind = (enum ipc_kind)pass(&wire, 0, 1);
    length = pass(&wire, 0, 4);
    pass_u64(&wire, &message->boot);
    expect(&wire, magic == IPC_MAGIC && length == bytes.len && length <= IPC_MESSAGE_BYTES_MAX);
    if (wire.status == 0 && version != IPC_VERSION)
        return -EPROTONOSUPPORT;
    pass_body(&wire, message);
    expect(&wire, wire.rest.len == 0);
    return wire.status;
}

int ipc_message_write(struct buf *out, const struct ipc_message *message)
{
    struct wire wire = {.out = out};
    struct ipc_message copy = *message; /* its fields are passed by pointer, and not changed */
    const size_t before = buf_len(out);
    size_t length;

    (void)pass(&wire, IPC_MAGIC, 2);
    (void)pass(&wire, IPC_VERSION, 1);
    (void)pass(&wire, (uint64_t)message->kind, 1);
    (void)pass(&wire, 0, 4); /* its length, when that is known */
    pass_u64(&wire, &copy.boot);
    pass_body(&wire, &copy);
    assert(wire.status != -EPROTO); /* what a message of ours says is in range */

    length = buf_len(out) - before;
    if (wire.status == 0 && length > IPC_MESSAGE_BYTES_MAX)
        wire.status = -EMSGSIZE;
    if (wire.status < 0) {
        out->end -= length;
        return wire.status;
    }
    for (size_t i = 0; i < 4; i++)
        out->bytes[out->end - length + LENGTH_AT + i] = (char)(uint8_t)(length >> 8 * i);
    return 0;
}

/* ---- what lies in a message ---- */

struct ipc_region ipc_hello_region(const struct ipc_hello *hello, size_t index)
{
    struct ipc_region region = {0};
    struct wire wire;

    assert(index < hello->region_count);

    wire = (struct wire){.rest = slice_skip(hello->regions, index * REGION_BYTES)};
    pass_region(&wire, &region);
    return region;
}

struct page_segment ipc_hello_segment(const struct ipc_hello *hello, size_t index)
{
    struct page_segment segment = {0};
    struct wire wire;

    assert(index < hello->segment_count);

    wire = (struct wire){.rest = slice_skip(hello->segments, index * SEGMENT_BYTES)};
    pass_segment(&wire, &segment);
    return segment;
}

uint32_t ipc_u32_at(struct slice numbers, size_t index)
{
    const uint8_t *at;

    assert(index < numbers.len / 4);

    at = (const uint8_t *)numbers.ptr + index * 4;
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

bool ipc_save_entry(struct slice *rest, struct ipc_save_entry *entry)
{
    struct wire wire = {.rest = *rest};

    if (rest->len == 0)
        return false;
    *entry = (struct ipc_save_entry){0};
    pass_save_entry(&wire, entry);
    assert(wire.status == 0); /* ipc_message_read() has looked */
    *rest = wire.rest;
    return true;
}

/* A part, or nothing of it. */
static int end_part(struct wire *wire, size_t before)
{
    if (wire->status < 0)
        wire->out->end -= buf_len(wire->out) - before;
    return wire->status;
}

int ipc_region_write(struct buf *out, const struct ipc_region *region)
{
    struct wire wire = {.out = out};
    struct ipc_region copy = *region;
    const size_t before = buf_len(out);

    pass_region(&wire, &copy);
    return end_part(&wire, before);
}

int ipc_segment_write(struct buf *out, const struct page_segment *segment)
{
    struct wire wire = {.out = out};
    struct page_segment copy = *segment;
    const size_t before = buf_len(out);

    pass_segment(&wire, &copy);
    return end_part(&wire, before);
}

int ipc_save_entry_write(struct buf *out, const struct ipc_save_entry *entry)
{
    struct wire wire = {.out = out};
    struct ipc_save_entry copy = *entry;
    const size_t before = buf_len(out);

    pass_save_entry(&wire, &copy);
    return end_part(&wire, before);
}
