/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/kvevents/kv_event_codec.h"

#include <assert.h>
#include <errno.h>

/*
 * DESIGN
 *
 * Each event is one row per field, in the order of the array form; the map form finds the row by
 * its name. The first `required` rows have no default in the engine: an event without one of them
 * is not of a version we know, and is passed over rather than guessed at. Where a map says a key
 * twice, the last one counts, as in the engine's own decoder.
 *
 * A payload is walked when it is opened (bounds, so that a cut batch is no batch), again when an
 * event is read (types, so that lists hold what they say), and when its lists are taken. Lists are
 * therefore plain cursors that cannot fail, and nobody needs memory for them.
 */

typedef int set_fn(struct kv_event *event, struct msgpack_reader *reader);

struct field {
    struct slice name;
    set_fn *set; /* NULL: known, and of no interest */
};

struct event_form {
    struct slice tag;
    enum kv_event_type type;
    const struct field *fields;
    size_t field_count;
    size_t required;
};

static int read_index(struct msgpack_reader *reader, int64_t *index)
{
    struct msgpack_value value;

    if (msgpack_reader_next(reader, &value) < 0)
        return -EINVAL;
    if (value.type == MSGPACK_NIL) {
        *index = -1;
        return 0;
    }
    if (value.type != MSGPACK_UNSIGNED || value.number > INT64_MAX)
        return -EINVAL;
    *index = (int64_t)value.number;
    return 0;
}

static int read_text(struct msgpack_reader *reader, struct slice *text)
{
    struct msgpack_value value;

    if (msgpack_reader_next(reader, &value) < 0)
        return -EINVAL;
    if (value.type != MSGPACK_NIL && value.type != MSGPACK_STRING)
        return -EINVAL;
    *text = value.bytes;
    return 0;
}

static int read_hash(struct msgpack_reader *reader, uint64_t *hash, bool *is_nil)
{
    struct msgpack_value value;

    *is_nil = true;
    if (msgpack_reader_next(reader, &value) < 0)
        return -EINVAL;
    *is_nil = value.type == MSGPACK_NIL;
    *hash = value.number;
    if (value.type == MSGPACK_BINARY) {
        size_t from = value.bytes.len > sizeof *hash ? value.bytes.len - sizeof *hash : 0;

        *hash = 0;
        for (size_t i = from; i < value.bytes.len; i++)
            *hash = *hash << 8 | (uint8_t)value.bytes.ptr[i];
        return value.bytes.len > 0 ? 0 : -EINVAL;
    }
    return *is_nil || value.type == MSGPACK_UNSIGNED || value.type == MSGPACK_NEGATIVE ? 0
                                                                                       : -EINVAL;
}

static int check_hash(struct msgpack_reader *reader)
{
    uint64_t hash;
    bool is_nil;

    return read_hash(reader, &hash, &is_nil) == 0 && !is_nil ? 0 : -EINVAL;
}

static int check_token(struct msgpack_reader *reader)
{
    struct msgpack_value value;

    if (msgpack_reader_next(reader, &value) < 0)
        return -EINVAL;
    return value.type == MSGPACK_UNSIGNED && value.number <= UINT32_MAX ? 0 : -EINVAL;
}

/* nil is an empty list. */
static int read_list(struct msgpack_reader *reader, int (*check)(struct msgpack_reader *reader),
                     struct kv_event_list *list)
{
    struct msgpack_value value;

    if (msgpack_reader_next(reader, &value) < 0)
        return -EINVAL;
    *list = (struct kv_event_list){*reader, 0};
    if (value.type == MSGPACK_NIL)
        return 0;
    if (value.type != MSGPACK_ARRAY)
        return -EINVAL;
    for (uint64_t i = 0; i < value.number; i++)
        if (check(reader) < 0)
            return -EINVAL;
    list->count = (size_t)value.number;
    return 0;
}

static int set_hashes(struct kv_event *event, struct msgpack_reader *reader)
{
    return read_list(reader, check_hash, &event->hashes);
}

static int set_parent(struct kv_event *event, struct msgpack_reader *reader)
{
    bool is_nil;
    int status = read_hash(reader, &event->parent, &is_nil);

    event->has_parent = !is_nil;
    return status;
}

static int set_token_ids(struct kv_event *event, struct msgpack_reader *reader)
{
    return read_list(reader, check_token, &event->token_ids);
}

static int set_block_size(struct kv_event *event, struct msgpack_reader *reader)
{
    int64_t size;

    if (read_index(reader, &size) < 0 || size > UINT32_MAX)
        return -EINVAL;
    event->block_size = size > 0 ? (uint32_t)size : 0;
    return 0;
}

static int set_lora_id(struct kv_event *event, struct msgpack_reader *reader)
{
    return read_index(reader, &event->lora_id);
}

static int set_medium(struct kv_event *event, struct msgpack_reader *reader)
{
    int status = read_text(reader, &event->medium);

    if (event->medium.len == 0)
        event->medium = SLICE("gpu");
    return status;
}

static int set_lora_name(struct kv_event *event, struct msgpack_reader *reader)
{
    return read_text(reader, &event->lora_name);
}

static int set_cache_salt(struct kv_event *event, struct msgpack_reader *reader)
{
    return read_text(reader, &event->cache_salt);
}

static int set_extra_keys(struct kv_event *event, struct msgpack_reader *reader)
{
    return read_list(reader, msgpack_reader_skip, &event->extra_keys);
}

static int set_group(struct kv_event *event, struct msgpack_reader *reader)
{
    return read_index(reader, &event->group);
}

static int set_spec_kind(struct kv_event *event, struct msgpack_reader *reader)
{
    return read_text(reader, &event->spec_kind);
}

static int set_sliding_window(struct kv_event *event, struct msgpack_reader *reader)
{
    return read_index(reader, &event->sliding_window);
}

/* As initialisers: SLICE() is no constant expression. */
#define FIELD(literal, set)                                                                        \
    {                                                                                              \
        {literal, sizeof(literal) - 1}, set                                                        \
    }

static const struct field stored_fields[] = {
    FIELD("block_hashes", set_hashes),
    FIELD("parent_block_hash", set_parent),
    FIELD("token_ids", set_token_ids),
    FIELD("block_size", set_block_size),
    FIELD("lora_id", set_lora_id),
    FIELD("medium", set_medium),
    FIELD("lora_name", set_lora_name),
    FIELD("extra_keys", set_extra_keys),
    FIELD("group_idx", set_group),
    FIELD("kv_cache_spec_kind", set_spec_kind),
    FIELD("kv_cache_spec_sliding_window", set_sliding_window),
    FIELD("locality", NULL),
    FIELD("ownership", NULL),
    FIELD("session_id", NULL),
    FIELD("cache_salt", set_cache_salt), /* SGLang's, in maps alone */
};

static const struct field removed_fields[] = {
    FIELD("block_hashes", set_hashes), FIELD("medium", set_medium), FIELD("group_idx", set_group),
    FIELD("locality", NULL),           FIELD("ownership", NULL),
};

#define EVENT(literal, type, fields, required)                                                     \
    {                                                                                              \
        {literal, sizeof(literal) - 1}, type, fields, array_count(fields), required                \
    }

static const struct event_form event_forms[] = {
    EVENT("BlockStored", KV_EVENT_STORED, stored_fields, 4),
    EVENT("BlockRemoved", KV_EVENT_REMOVED, removed_fields, 1),
    {{"AllBlocksCleared", 16}, KV_EVENT_CLEARED, NULL, 0, 0},
};

static const struct event_form *form_of(struct slice tag)
{
    for (size_t i = 0; i < array_count(event_forms); i++)
        if (slice_eq(event_forms[i].tag, tag))
            return &event_forms[i];
    return NULL;
}

/* field_count if none has the name. */
static size_t field_index(const struct event_form *form, struct msgpack_value name)
{
    size_t i = 0;

    while (i < form->field_count &&
           (name.type != MSGPACK_STRING || !slice_eq(form->fields[i].name, name.bytes)))
        i++;
    return i;
}

static int read_field(const struct field *field, struct kv_event *event,
                      struct msgpack_reader *reader)
{
    return field->set != NULL ? field->set(event, reader) : msgpack_reader_skip(reader);
}

static int read_positions(struct kv_event_batch *batch, const struct event_form *form,
                          struct kv_event_list rest, struct kv_event *event)
{
    if (rest.count < form->required)
        return -EINVAL;
    for (size_t i = 0; i < rest.count && i < form->field_count; i++)
        if (read_field(&form->fields[i], event, &rest.values) < 0)
            return -EINVAL;
    if (rest.count > form->field_count)
        batch->skipped.unknown_field_count += (uint32_t)(rest.count - form->field_count);
    return 0;
}

static int read_pairs(struct kv_event_batch *batch, const struct event_form *form,
                      struct kv_event_list pairs, struct kv_event *event)
{
    uint32_t seen = 0, unknown_count = 0;
    const uint32_t required = (1U << form->required) - 1;
    struct msgpack_value name;

    for (size_t n = 0; n < pairs.count; n++) {
        struct slice key = pairs.values.rest;

        if (msgpack_reader_next(&pairs.values, &name) < 0)
            return -EINVAL;
        size_t i = field_index(form, name);

        if (i < form->field_count) {
            seen |= 1U << i;
            if (read_field(&form->fields[i], event, &pairs.values) < 0)
                return -EINVAL;
            continue;
        }
        unknown_count += name.type != MSGPACK_STRING || !slice_eq(name.bytes, SLICE("type"));
        pairs.values.rest = key; /* it may be a container, and is passed over whole */
        if (msgpack_reader_skip(&pairs.values) < 0 || msgpack_reader_skip(&pairs.values) < 0)
            return -EINVAL;
    }
    batch->skipped.unknown_field_count += unknown_count;
    return (seen & required) == required ? 0 : -EINVAL;
}

/* The value of the key, as a reader at it. */
static bool find_key(struct kv_event_list pairs, struct slice key, struct msgpack_reader *found)
{
    bool is_found = false;

    for (size_t n = 0; n < pairs.count; n++) {
        struct msgpack_reader at = pairs.values;
        struct msgpack_value name;

        if (msgpack_reader_next(&at, &name) < 0 || msgpack_reader_skip(&pairs.values) < 0)
            return false;
        if (name.type == MSGPACK_STRING && slice_eq(name.bytes, key)) {
            *found = pairs.values;
            is_found = true;
        }
        if (msgpack_reader_skip(&pairs.values) < 0)
            return false;
    }
    return is_found;
}

/* 0; -ENOENT: no event that we know; -EINVAL: it is none, or not as it should be. */
static int read_event(struct kv_event_batch *batch, struct msgpack_reader reader,
                      struct kv_event *event)
{
    struct msgpack_value head, tag;
    struct msgpack_reader tag_at;
    const struct event_form *form;

    *event =
        (struct kv_event){.medium = SLICE("gpu"), .group = -1, .lora_id = -1, .sliding_window = -1};
    if (msgpack_reader_next(&reader, &head) < 0)
        return -EINVAL;
    struct kv_event_list content = {reader, (size_t)head.number};
    if (head.type == MSGPACK_MAP) {
        if (!find_key(content, SLICE("type"), &tag_at))
            return -EINVAL;
    } else if (head.type == MSGPACK_ARRAY && head.number > 0) {
        tag_at = reader;
    } else {
        return -EINVAL;
    }
    if (msgpack_reader_next(&tag_at, &tag) < 0 || tag.type != MSGPACK_STRING)
        return -EINVAL;
    form = form_of(tag.bytes);
    if (form == NULL)
        return -ENOENT;
    event->type = form->type;
    if (head.type == MSGPACK_MAP)
        return read_pairs(batch, form, content, event);
    return read_positions(batch, form, (struct kv_event_list){tag_at, content.count - 1}, event);
}

static int read_sequence(struct slice frame, uint64_t *sequence)
{
    if (frame.len != KV_EVENT_SEQUENCE_BYTES)
        return -EPROTO;
    *sequence = 0;
    for (size_t i = 0; i < frame.len; i++)
        *sequence = *sequence << 8 | (uint8_t)frame.ptr[i];
    return 0;
}

int kv_event_message_read(const struct slice *frames, size_t frame_count,
                          struct kv_event_message *message)
{
    if (frame_count != 3)
        return -EPROTO;
    message->topic = frames[0];
    message->payload = frames[2];
    return read_sequence(frames[1], &message->sequence);
}

int kv_event_reply_read(const struct slice *frames, size_t frame_count,
                        struct kv_event_message *message)
{
    if ((frame_count != 3 && frame_count != 4) || frames[0].len != 0)
        return -EPROTO;
    message->topic = frame_count == 4 ? frames[1] : (struct slice){NULL, 0};
    message->payload = frames[frame_count - 1];
    if (read_sequence(frames[frame_count - 2], &message->sequence) < 0)
        return -EPROTO;
    return message->payload.len == 0 ? 1 : 0;
}

void kv_event_request_write(uint64_t sequence, uint8_t frame[KV_EVENT_SEQUENCE_BYTES])
{
    for (size_t i = KV_EVENT_SEQUENCE_BYTES; i-- > 0; sequence >>= 8)
        frame[i] = (uint8_t)sequence;
}

static int read_time(struct kv_event_batch *batch, struct msgpack_reader *reader)
{
    struct msgpack_value value;

    if (msgpack_reader_next(reader, &value) < 0)
        return -EINVAL;
    if (value.type == MSGPACK_FLOAT)
        batch->at_s = value.real;
    else if (value.type == MSGPACK_UNSIGNED)
        batch->at_s = (double)value.number;
    else if (value.type != MSGPACK_NIL)
        return -EINVAL;
    return 0;
}

static int read_batch_array(struct kv_event_batch *batch, struct kv_event_list content)
{
    if (content.count < 2 || read_time(batch, &content.values) < 0 ||
        read_list(&content.values, msgpack_reader_skip, &batch->events) < 0)
        return -EINVAL;
    if (content.count > 3)
        batch->skipped.unknown_field_count = (uint32_t)(content.count - 3);
    return content.count > 2 ? read_index(&content.values, &batch->rank) : 0;
}

static int read_batch_map(struct kv_event_batch *batch, struct kv_event_list content)
{
    struct msgpack_reader at;
    size_t known_count = 1;

    if (!find_key(content, SLICE("events"), &at) ||
        read_list(&at, msgpack_reader_skip, &batch->events) < 0)
        return -EINVAL;
    if (find_key(content, SLICE("ts"), &at)) {
        known_count++;
        if (read_time(batch, &at) < 0)
            return -EINVAL;
    }
    if (find_key(content, SLICE("data_parallel_rank"), &at)) {
        known_count++;
        if (read_index(&at, &batch->rank) < 0)
            return -EINVAL;
    }
    batch->skipped.unknown_field_count = (uint32_t)(content.count - known_count);
    return 0;
}

int kv_event_batch_open(struct kv_event_batch *batch, struct slice payload)
{
    struct msgpack_reader reader = {payload};
    struct msgpack_value head;

    *batch = (struct kv_event_batch){.rank = -1};
    if (payload.len > KV_EVENT_PAYLOAD_BYTES_MAX)
        return -EMSGSIZE;
    if (msgpack_reader_skip(&reader) < 0 || reader.rest.len > 0)
        return -EINVAL;
    reader.rest = payload;
    if (msgpack_reader_next(&reader, &head) < 0)
        return -EINVAL;
    struct kv_event_list content = {reader, (size_t)head.number};
    if (head.type == MSGPACK_ARRAY)
        return read_batch_array(batch, content);
    return head.type == MSGPACK_MAP ? read_batch_map(batch, content) : -EINVAL;
}

bool kv_event_next(struct kv_event_batch *batch, struct kv_event *event)
{
    while (batch->events.count > 0) {
        struct msgpack_reader at = batch->events.values;
        int status = msgpack_reader_skip(&batch->events.values);

        assert(status == 0); /* kv_event_batch_open() has walked it */
        batch->events.count--;
        status = read_event(batch, at, event);
        if (status == 0)
            return true;
        if (status == -ENOENT)
            batch->skipped.unknown_event_count++;
        else
            batch->skipped.malformed_event_count++;
    }
    return false;
}

bool kv_event_next_hash(struct kv_event_list *hashes, uint64_t *hash)
{
    bool is_nil;

    if (hashes->count == 0)
        return false;
    hashes->count--;
    int status = read_hash(&hashes->values, hash, &is_nil);
    assert(status == 0 && !is_nil); /* read_list() has */
    return true;
}

size_t kv_event_take_tokens(struct kv_event_list *token_ids, uint32_t *tokens,
                            size_t token_count_max)
{
    size_t count = token_ids->count < token_count_max ? token_ids->count : token_count_max;
    struct msgpack_value value;

    for (size_t i = 0; i < count; i++) {
        int status = msgpack_reader_next(&token_ids->values, &value);

        assert(status == 0);
        tokens[i] = (uint32_t)value.number;
    }
    token_ids->count -= count;
    return count;
}

bool kv_event_next_extra_keys(struct kv_event_list *extra_keys, struct slice *encoded)
{
    static const char nil = '\xc0';

    if (extra_keys->count == 0)
        return false;
    extra_keys->count--;
    const struct slice before = extra_keys->values.rest;
    int status = msgpack_reader_skip(&extra_keys->values);
    assert(status == 0);
    *encoded = (struct slice){before.ptr, before.len - extra_keys->values.rest.len};
    if (slice_eq(*encoded, slice_of(&nil, 1)))
        *encoded = (struct slice){NULL, 0};
    return true;
}
