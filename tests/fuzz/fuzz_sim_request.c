/* SPDX-License-Identifier: Apache-2.0 */

/* A body that the engine accepts has prompts that fit; one that it refuses has a whole error. The
 * first byte of the input chooses the endpoint and the template. */
#include "tests/fuzz/fuzz_input.h"
#include "tests/sim_engine/engine_request.h"

#include <assert.h>

static void check(const struct engine_model *model, enum engine_api api, struct json_value root)
{
    struct engine_request request;
    struct engine_fault fault = {0};

    if (engine_request_read(api, model, root, &request, &fault) < 0) {
        assert(fault.status == 400 || fault.status == 404);
        assert(fault.type != NULL && fault.message[0] != '\0');
    } else {
        assert(request.prompt_count > 0);
        assert(request.choice_count >= 1 && request.choice_count <= ENGINE_CHOICE_COUNT_MAX);
        for (size_t i = 0; i < request.prompt_count; i++) {
            assert(request.prompts[i].count > 0);
            assert(request.prompts[i].count + request.answer_tokens <= model->context_tokens_max);
        }
    }
    engine_request_release(&request);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct engine_model model = {.name = SLICE("tiny"), .context_tokens_max = 1024};
    struct json_scanner *scanner = json_scanner_create();
    struct parse_error error;
    struct json_value root;

    assert(scanner != NULL);
    if (size > 0) {
        model.chat_template.habit = (enum chat_habit)(bytes[0] % CHAT_HABIT_COUNT);
        if (json_scan_copy(scanner, slice_of(bytes + 1, size - 1), &root, &error) == 0)
            check(&model, (enum engine_api)(bytes[0] / CHAT_HABIT_COUNT % 3), root);
    }
    json_scanner_destroy(scanner);
    return 0;
}
