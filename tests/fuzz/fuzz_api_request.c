/* SPDX-License-Identifier: Apache-2.0 */

/* The first byte names an API, the rest is a body: parsing and naming never fail in another way
 * than by saying why, and the names hold together. */
#include "router/prompt/prompt_stream.h"
#include "tests/fuzz/fuzz_api.h"
#include "tests/fuzz/fuzz_input.h"

#include <assert.h>
#include <errno.h>

enum { BLOCK_COUNT_MAX = 64, ARENA_BYTES = 1 << 20 };

static void check_blocks(const struct prompt_blocks *prompt)
{
    uint64_t end = 0;

    assert(prompt->block_count <= BLOCK_COUNT_MAX);
    assert(prompt->block_count - prompt->closed_count <= 1);
    for (size_t i = 0; i < prompt->block_count; i++) {
        assert(prompt->blocks[i].end > end);
        assert(prompt->blocks[i].hash != 0);
        end = prompt->blocks[i].end;
    }
    assert(end <= prompt->bytes);
}

static void check_fault(const struct api_fault *fault)
{
    assert(fault->code != NULL && fault->code[0] != '\0');
    assert(strlen(fault->message) > 0);
}

/* Whatever stands where: the prompt is as good, and as long. */
static uint64_t name(struct api_request *request, enum tool_place tool_place, int *status)
{
    static const uint8_t secret[BLOCK_CHAIN_SECRET_BYTES] = {1, 2, 3};
    const struct prompt_stream_config config = {secret, 256, 64, tool_place};
    struct prompt_blocks prompt;
    struct api_fault fault;
    struct arena arena;

    arena_init(&arena, ARENA_BYTES);
    *status = prompt_stream_write(config, request, &arena, BLOCK_COUNT_MAX, &prompt, &fault);
    check_blocks(&prompt);
    if (api_work(request->api) != API_WORK_GENERATE || request->continues_state)
        assert(prompt.block_count == 0);
    assert(*status == 0 || *status == -EINVAL || *status == -ENOBUFS);
    if (*status == -EINVAL)
        check_fault(&fault);
    arena_release(&arena);
    return prompt.bytes;
}

static void run(enum api api, struct slice body)
{
    struct json_scanner *scanner = json_scanner_create();
    struct api_request request;
    struct api_fault fault;
    int status = api_request_parse(api, scanner, body, &request, &fault), late_status;

    if (status == 0) {
        uint64_t bytes;

        assert(body.ptr[request.object_start] == '{');
        bytes = name(&request, TOOLS_FIRST, &status);
        for (enum tool_place place = TOOLS_FIRST + 1; place < TOOL_PLACE_COUNT; place++) {
            uint64_t late_bytes = name(&request, place, &late_status);

            assert(late_status == status);
            assert(status != 0 || late_bytes == bytes);
        }
    } else if (status == -EINVAL) {
        check_fault(&fault);
    }
    assert(status == 0 || status == -EINVAL || status == -ENOBUFS);
    json_scanner_destroy(scanner);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *body;

    if (size == 0)
        return 0;
    body = fuzz_padded(data + 1, size - 1, JSON_PADDING);
    run(fuzz_api(data[0]), slice_of(body, size - 1));
    free(body);
    return 0;
}
