/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/engine_request.h"

#include <stdlib.h>

void engine_request_init(struct engine_request *request, enum engine_api api)
{
    *request = (struct engine_request){.api = api, .choice_count = 1};
    buf_init(&request->echo, SIZE_MAX);
    buf_init(&request->messages, SIZE_MAX);
}

void engine_request_release(struct engine_request *request)
{
    for (size_t i = 0; i < request->prompt_count; i++)
        token_list_release(&request->prompts[i]);
    free(request->prompts);
    buf_release(&request->echo);
    buf_release(&request->messages);
    *request = (struct engine_request){0};
}
