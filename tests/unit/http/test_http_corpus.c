/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Every input of tests/fixtures/http through the reader: whole, byte by byte, and cut in two at
 * each of its bytes. See the README there for what the fields of a line mean.
 */
#include "backends/http/http_reader.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdio.h>

#include "backends/json/json_scan.h"
#include "backends/runtime/buf.h"
#include "tests/support/leak_check.h"

enum { STATUS_COUNT_MAX = 4, FILE_BYTES_MAX = 1 << 20 };

struct input {
    char id[8], outcome[24];
    struct buf bytes;
    long statuses[STATUS_COUNT_MAX]; /* acceptable; 0: end of the list */
    long message_count;              /* wanted, where it is let through */
};

/* ---- reading the files ---- */

static int sextet(char digit)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = strchr(digits, digit);

    cr_assert(digit != '\0' && at != NULL, "not base64: %d", digit);
    return (int)(at - digits);
}

static void decode(struct slice text, struct buf *bytes)
{
    unsigned bits = 0, count = 0;

    for (size_t i = 0; i < text.len && text.ptr[i] != '='; i++) {
        bits = bits << 6 | (unsigned)sextet(text.ptr[i]);
        count += 6;
        if (count >= 8) {
            char byte = (char)(bits >> (count -= 8));

            cr_assert(eq(int, buf_append(bytes, slice_of(&byte, 1)), 0));
        }
    }
}

static void copy_text(char *to, size_t size, struct slice text)
{
    cr_assert(lt(sz, text.len, size));
    memcpy(to, text.ptr, text.len);
    to[text.len] = '\0';
}

static struct input input_of(struct json_scanner *scanner, const char *line)
{
    struct input input = {0};
    struct json_value root, status;
    struct json_iterator statuses;
    struct parse_error error;
    size_t count = 0;

    cr_assert(eq(int, json_scan_copy(scanner, slice_of_string(line), &root, &error), 0));
    copy_text(input.id, sizeof input.id, json_string(json_get(root, "id")));
    copy_text(input.outcome, sizeof input.outcome, json_string(json_get(root, "outcome")));
    buf_init(&input.bytes, FILE_BYTES_MAX);
    decode(json_string(json_get(root, "bytes_base64")), &input.bytes);
    statuses = json_iterate(json_get(root, "status"));
    while (json_next_element(&statuses, &status) && count < STATUS_COUNT_MAX)
        input.statuses[count++] = (long)json_int64(status);
    input.message_count = (long)json_int64(json_get(root, "messages"));
    return input;
}

/* Calls run with each input of the file; at least count_min. */
static void for_each_input(const char *name, size_t count_min, void (*run)(const struct input *))
{
    struct json_scanner *scanner = json_scanner_create();
    char path[512], *line = NULL;
    size_t size = 0, count = 0;
    FILE *file;

    snprintf(path, sizeof path, "%s/fixtures/http/%s", TESTS_DIR, name);
    file = fopen(path, "r");
    cr_assert(file != NULL, "%s", path);
    while (getline(&line, &size, file) > 0) {
        struct input input = input_of(scanner, line);

        run(&input);
        buf_release(&input.bytes);
        count++;
    }
    cr_assert(ge(sz, count, count_min));
    free(line);
    fclose(file);
    json_scanner_destroy(scanner);
}

/* ---- running one ---- */

/* What was read of one connection. */
struct reading {
    long head_count, end_count;
    int fault_status, answer_status, end_status;
    uint64_t sum; /* of heads and bodies */
    bool is_last; /* the connection ends with this message */
    bool has_ended;
    size_t behind; /* bytes behind the last message */
};

static void add(struct reading *reading, struct slice bytes)
{
    for (size_t i = 0; i < bytes.len; i++)
        reading->sum = (reading->sum ^ (unsigned char)bytes.ptr[i]) * 1099511628211u;
}

static int on_head(void *ctx, const struct http_head *head)
{
    struct reading *reading = ctx;

    reading->head_count++;
    reading->answer_status = head->status;
    reading->is_last = !head->keep_alive;
    add(reading, head->target);
    for (size_t i = 0; i < head->header_count; i++) {
        add(reading, head->headers[i].name);
        add(reading, head->headers[i].value);
    }
    return 0;
}

static int on_body(void *ctx, struct slice piece)
{
    add(ctx, piece);
    return 0;
}

static int on_end(void *ctx)
{
    struct reading *reading = ctx;

    reading->end_count++;
    reading->has_ended = true;
    add(reading, SLICE("\n"));
    return 0;
}

static const struct http_reader_callbacks callbacks = {on_head, on_body, on_end};

static void feed(struct http_reader *reader, struct reading *reading, struct slice bytes)
{
    while (bytes.len > 0 && reading->fault_status == 0) {
        size_t consumed;

        if (reading->has_ended && reading->is_last) {
            reading->behind += bytes.len;
            return;
        }
        if (reading->has_ended)
            http_reader_next(reader);
        reading->has_ended = false;
        if (http_reader_feed(reader, bytes, &consumed) < 0)
            reading->fault_status = http_reader_fault(reader).status;
        bytes = slice_skip(bytes, consumed);
    }
}

/* In pieces of step, the first of which is first bytes long. */
static struct reading read_input(enum http_reader_kind kind, struct slice bytes, size_t first,
                                 size_t step)
{
    static const struct http_reader_limits limits = {
        .head_bytes_max = 32 * 1024, .target_bytes_max = 8 * 1024, .body_bytes_max = 1 << 25};
    struct reading reading = {0};
    struct http_reader *reader = http_reader_create(kind, limits, &callbacks, &reading);

    for (size_t at = 0, len = first; at < bytes.len; at += len, len = step) {
        if (len > bytes.len - at)
            len = bytes.len - at;
        feed(reader, &reading, slice_of(bytes.ptr + at, len));
    }
    reading.end_status = http_reader_feed_end(reader);
    http_reader_destroy(reader);
    return reading;
}

static void expect_same(const struct input *input, size_t cut, const struct reading *a,
                        const struct reading *b)
{
    bool is_same = a->fault_status == b->fault_status && a->head_count == b->head_count &&
                   a->end_count == b->end_count && a->end_status == b->end_status &&
                   (a->fault_status != 0 || a->sum == b->sum);

    cr_assert(is_same, "%s: read differently when cut at %zu (0: byte by byte): %d, %ld", input->id,
              cut, b->fault_status, b->end_count);
}

/* The same however it is cut; returned is what it is. */
static struct reading read_each_way(enum http_reader_kind kind, const struct input *input)
{
    struct slice bytes = buf_slice(&input->bytes);
    struct reading whole = read_input(kind, bytes, bytes.len, bytes.len);
    struct reading single = read_input(kind, bytes, 1, 1);

    expect_same(input, 0, &whole, &single);
    for (size_t cut = 1; cut < bytes.len; cut++) {
        struct reading halves = read_input(kind, bytes, cut, bytes.len);

        expect_same(input, cut, &whole, &halves);
    }
    return whole;
}

static bool is_acceptable(const struct input *input, int status)
{
    for (size_t i = 0; i < STATUS_COUNT_MAX && input->statuses[i] != 0; i++) {
        if (input->statuses[i] == status)
            return true;
    }
    return false;
}

static bool is_outcome(const struct input *input, const char *outcome)
{
    return strcmp(input->outcome, outcome) == 0;
}

static void run_request(const struct input *input)
{
    struct reading reading = read_each_way(HTTP_READER_REQUESTS, input);
    bool is_fault = reading.fault_status != 0;

    if (strcmp(input->id, "P10") == 0) /* its fault is that it ends too early */
        cr_assert(eq(int, reading.end_status, -EPIPE));
    else if (is_outcome(input, "reject"))
        cr_assert(is_acceptable(input, reading.fault_status), "%s: %d", input->id,
                  reading.fault_status);
    else if (is_outcome(input, "accept_then_close"))
        cr_assert(is_fault && reading.end_count == 1, "%s", input->id);
    else if (is_outcome(input, "either") && is_fault)
        cr_assert(is_acceptable(input, reading.fault_status), "%s: %d", input->id,
                  reading.fault_status);
    else
        cr_assert(is_fault == false && reading.head_count == input->message_count, "%s: %d, %ld",
                  input->id, reading.fault_status, reading.head_count);
    if (is_outcome(input, "reject"))
        cr_assert(eq(long, reading.end_count, 0), "%s", input->id);
}

static void run_answer(const struct input *input)
{
    struct reading reading = read_each_way(HTTP_READER_ANSWERS, input);
    bool is_cut = is_outcome(input, "cut");

    if (is_outcome(input, "reject")) {
        cr_assert(reading.fault_status != 0 && reading.end_count == 0, "%s", input->id);
        return;
    }
    cr_assert(is_acceptable(input, reading.answer_status), "%s: %d", input->id,
              reading.answer_status);
    cr_assert(eq(long, reading.end_count, is_cut ? 0 : 1), "%s", input->id);
    cr_assert(eq(int, reading.end_status, is_cut ? -EPIPE : 0), "%s", input->id);
}

TestSuite(http_corpus, .fini = leak_check);

Test(http_corpus, requests_have_the_outcome_wanted_however_they_are_cut)
{
    for_each_input("requests.jsonl", 90, run_request);
}

/* R05 and R12 have a second answer behind theirs: whoever owns the connection drops it (see
 * worker_conn), so here only the first is read. */
static void run_first_answer(const struct input *input)
{
    struct input first = *input;

    if (strcmp(input->id, "R05") == 0 || strcmp(input->id, "R12") == 0) {
        const char *behind =
            memmem(input->bytes.bytes + 5, buf_len(&input->bytes) - 5, "HTTP/1.1", 8);

        cr_assert(behind != NULL);
        first.bytes.end = (size_t)(behind - input->bytes.bytes);
    }
    run_answer(&first);
}

Test(http_corpus, answers_have_the_outcome_wanted_however_they_are_cut)
{
    for_each_input("responses.jsonl", 18, run_first_answer);
}
