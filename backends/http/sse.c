/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/http/sse.h"

#include <assert.h>
#include <string.h>

/*
 * DESIGN
 *
 * Lines are found by memchr, once for LF over the piece and once for CR within the line, so that a
 * byte is looked at twice at most, however short the lines are. What must outlive a piece lies in
 * one buffer:
 *
 *      carry:  | data lines joined by LF | bytes of the unfinished line |
 *              0                      data_len                         end
 *
 * A line that is whole in its piece is read where it is; a data line that is the only one of an
 * event ending in the same piece is never copied (`in_place`). An unfinished line is only appended
 * to, never read again from its start; once it ends, its field value is moved down once. So the
 * work is linear in the bytes, whatever their splitting.
 *
 * Events end at an empty line. At a CR we do not wait to see whether an LF follows: the last event
 * of a stream must not hang on it. An LF that comes later is swallowed by the CR.
 */

enum { CARRY_SPARE = 64 }; /* the field name before the value of an unfinished line */

/* One call's view of the piece. */
struct scan {
    const char *start;
    const char *at;
    const char *end;
    const char *lf;        /* the next LF at or behind `at`; end if none */
    struct slice in_place; /* the event's only data line so far, in this piece; ptr NULL if none */
    sse_event_fn *on_event;
    void *ctx;
};

static const char byte_order_mark[] = {'\xEF', '\xBB', '\xBF'};

void sse_reader_init(struct sse_reader *reader)
{
    *reader = (struct sse_reader){.at_line_start = true};
    buf_init(&reader->carry, SSE_DATA_BYTES_MAX + CARRY_SPARE);
}

void sse_reader_release(struct sse_reader *reader)
{
    buf_release(&reader->carry);
    sse_reader_init(reader);
}

static uint64_t offset_of(const struct sse_reader *reader, const struct scan *scan)
{
    return reader->offset + (uint64_t)(scan->at - scan->start);
}

static void forget_data(struct sse_reader *reader)
{
    reader->is_oversize = true;
    reader->data_len = 0;
    buf_clear(&reader->carry);
}

/* Appends to carry; too much makes the event oversize and its data forgotten. */
static void keep(struct sse_reader *reader, struct slice bytes)
{
    if (!reader->is_oversize && buf_append(&reader->carry, bytes) < 0)
        forget_data(reader);
}

/* carry holds nothing but joined data now. */
static void set_data_len(struct sse_reader *reader)
{
    reader->data_len = buf_len(&reader->carry);
    if (reader->data_len > SSE_DATA_BYTES_MAX)
        forget_data(reader);
}

/* Moves the data that lies in the piece into carry, in front of an unfinished line, which is not
 * there yet. */
static void keep_in_place(struct sse_reader *reader, struct scan *scan)
{
    if (scan->in_place.ptr == NULL)
        return;
    assert(buf_len(&reader->carry) == 0);
    keep(reader, scan->in_place);
    reader->data_len = buf_len(&reader->carry);
    scan->in_place = slice_of(NULL, 0);
}

/* A data line of the piece. */
static void add_data_in_place(struct sse_reader *reader, struct scan *scan, struct slice value)
{
    if (!reader->has_data && value.len <= SSE_DATA_BYTES_MAX) {
        scan->in_place = value;
        return;
    }
    keep_in_place(reader, scan);
    if (reader->has_data)
        keep(reader, SLICE("\n"));
    keep(reader, value);
    set_data_len(reader);
}

/* A data line that was gathered behind data_len: its value moves down to join the others. */
static void add_data_carried(struct sse_reader *reader, struct slice value)
{
    char *to = reader->carry.bytes + reader->carry.start + reader->data_len;

    if (reader->has_data)
        *to++ = '\n'; /* over the "d" of "data" */
    memmove(to, value.ptr, value.len);
    reader->carry.end = (size_t)(to - reader->carry.bytes) + value.len;
    set_data_len(reader);
}

static void set_name(struct sse_reader *reader, struct slice value)
{
    reader->name_len = (uint8_t)(value.len < SSE_NAME_BYTES_MAX ? value.len : SSE_NAME_BYTES_MAX);
    if (value.len > 0)
        memcpy(reader->name, value.ptr, reader->name_len);
}

/* True if line is field `name`: *value is what stands behind the colon and one space. */
static bool field_value(struct slice line, struct slice name, struct slice *value)
{
    if (!slice_starts_with(line, name))
        return false;
    if (line.len > name.len && line.ptr[name.len] != ':')
        return false;
    *value = slice_skip(line, line.len > name.len ? name.len + 1 : name.len);
    if (value->len > 0 && value->ptr[0] == ' ')
        *value = slice_skip(*value, 1);
    return true;
}

/* A whole line of an event, in the piece (scan) or behind data_len in carry (scan NULL). */
static void read_line(struct sse_reader *reader, struct scan *scan, struct slice line)
{
    struct slice value;

    if (field_value(line, SLICE("data"), &value)) {
        if (scan != NULL)
            add_data_in_place(reader, scan, value);
        else
            add_data_carried(reader, value);
        reader->has_data = true;
        return;
    }
    if (field_value(line, SLICE("event"), &value))
        set_name(reader, value);
    if (scan == NULL)
        reader->carry.end = reader->carry.start + reader->data_len;
}

/* An idle stream keeps no more than a small buffer. */
static void clear_carry(struct sse_reader *reader)
{
    enum { KEPT_BYTES = 4096 };

    if (reader->carry.capacity > KEPT_BYTES)
        buf_release(&reader->carry);
    else
        buf_clear(&reader->carry);
}

/* The empty line: gives the event out if it has data, and starts anew. */
static void end_event(struct sse_reader *reader, struct scan *scan)
{
    struct slice data = scan->in_place.ptr != NULL ? scan->in_place : buf_slice(&reader->carry);

    if (reader->has_data || reader->is_oversize) {
        struct sse_event event = {
            .name = slice_of(reader->name, reader->name_len),
            .data = reader->is_oversize ? slice_of(NULL, 0) : data,
            .is_oversize = reader->is_oversize,
            .start = reader->event_start,
            .end = offset_of(reader, scan),
        };
        scan->on_event(scan->ctx, &event);
    }
    scan->in_place = slice_of(NULL, 0);
    clear_carry(reader);
    reader->data_len = 0;
    reader->name_len = 0;
    reader->is_inside = reader->is_oversize = reader->has_data = false;
}

static const char *find_lf(const struct scan *scan)
{
    const char *lf = memchr(scan->at, '\n', (size_t)(scan->end - scan->at));

    return lf != NULL ? lf : scan->end;
}

/* The end of the line at scan->at within the piece, or NULL. */
static const char *find_line_end(struct scan *scan)
{
    const char *cr;

    if (scan->lf < scan->at)
        scan->lf = find_lf(scan);
    cr = memchr(scan->at, '\r', (size_t)(scan->lf - scan->at));
    if (cr != NULL)
        return cr;
    return scan->lf < scan->end ? scan->lf : NULL;
}

/* The first bytes of a line: a comment is skipped, anything else belongs to an event. */
static void begin_line(struct sse_reader *reader, const struct scan *scan)
{
    bool is_comment = *scan->at == ':';

    reader->has_comments |= is_comment;
    reader->is_skipping = is_comment || reader->is_oversize;
    if (!reader->is_inside)
        reader->event_start = offset_of(reader, scan);
    reader->is_inside = reader->is_inside || !is_comment;
}

/* What is left of the piece is an unfinished line. */
static void carry_rest(struct sse_reader *reader, struct scan *scan)
{
    keep_in_place(reader, scan);
    if (scan->at == scan->end)
        return;
    if (reader->at_line_start)
        begin_line(reader, scan);
    reader->at_line_start = false;
    if (!reader->is_skipping)
        keep(reader, slice_of(scan->at, (size_t)(scan->end - scan->at)));
    scan->at = scan->end;
}

static void take_line(struct sse_reader *reader, struct scan *scan, const char *line_end)
{
    struct slice rest = slice_of(scan->at, (size_t)(line_end - scan->at));

    if (!reader->at_line_start) {
        if (!reader->is_skipping)
            keep(reader, rest);
        if (!reader->is_skipping && !reader->is_oversize)
            read_line(reader, NULL, slice_skip(buf_slice(&reader->carry), reader->data_len));
    } else if (rest.len > 0) {
        begin_line(reader, scan);
        if (!reader->is_skipping)
            read_line(reader, scan, rest);
    }
}

/* Steps over the CR, LF or CRLF at line_end. */
static void pass_line_end(struct sse_reader *reader, struct scan *scan, const char *line_end)
{
    bool is_cr = *line_end == '\r';

    scan->at = line_end + 1;
    if (is_cr && scan->at < scan->end && *scan->at == '\n')
        scan->at++;
    else
        reader->last_was_cr = is_cr && scan->at == scan->end;
    reader->at_line_start = true;
}

/* The mark may open a stream, and may be split like anything else. A start that only looks like one
 * is a line of an unknown field: dropping its first bytes changes nothing. */
static void skip_byte_order_mark(struct sse_reader *reader, struct scan *scan)
{
    while (scan->at < scan->end && reader->bom_len < sizeof byte_order_mark &&
           offset_of(reader, scan) == reader->bom_len &&
           *scan->at == byte_order_mark[reader->bom_len]) {
        reader->bom_len++;
        scan->at++;
    }
}

void sse_reader_feed(struct sse_reader *reader, struct slice piece, sse_event_fn *on_event,
                     void *ctx)
{
    struct scan scan = {.start = piece.ptr, .at = piece.ptr, .on_event = on_event, .ctx = ctx};
    const char *line_end;

    if (piece.len == 0)
        return;
    scan.end = piece.ptr + piece.len;
    if (reader->offset < sizeof byte_order_mark)
        skip_byte_order_mark(reader, &scan);
    if (reader->last_was_cr && *scan.at == '\n')
        scan.at++;
    reader->last_was_cr = false;
    scan.lf = find_lf(&scan);
    while (scan.at < scan.end && (line_end = find_line_end(&scan)) != NULL) {
        bool is_empty = reader->at_line_start && line_end == scan.at;

        take_line(reader, &scan, line_end);
        pass_line_end(reader, &scan, line_end);
        if (is_empty)
            end_event(reader, &scan);
    }
    carry_rest(reader, &scan);
    reader->offset += piece.len;
}

bool sse_reader_is_at_boundary(const struct sse_reader *reader)
{
    return !reader->is_inside && reader->at_line_start;
}

bool sse_reader_is_after_cr(const struct sse_reader *reader)
{
    return reader->last_was_cr;
}
