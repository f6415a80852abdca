/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/route.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

TestSuite(route);

Test(route, a_response_is_found_by_its_id)
{
    struct route response = route_find("/v1/responses/resp_1");
    struct route cancel = route_find("/v1/responses/resp_1/cancel");

    cr_assert(eq(int, (int)response.kind, ROUTE_RESPONSE));
    cr_assert(eq(int, (int)response.method, HTTP_METHOD_GET));
    cr_assert(slice_eq(response.id, SLICE("resp_1")));
    cr_assert(eq(int, (int)cancel.kind, ROUTE_CANCEL));
    cr_assert(eq(int, (int)cancel.method, HTTP_METHOD_POST));
    cr_assert(slice_eq(cancel.id, SLICE("resp_1")));
}

Test(route, only_exact_paths_are_there)
{
    static const char *const paths[] = {
        "/v1/responses/",     "/v1/responses//cancel", "/v1/responses/a/b", "/v1/messages/",
        "/v1/messages/count", "/V1/messages",          "/v3/rerank",        "",
    };

    for (size_t i = 0; i < array_count(paths); i++)
        cr_assert(eq(int, (int)route_find(paths[i]).kind, ROUTE_NONE), "%s", paths[i]);
    cr_assert(eq(int, (int)route_find("/v1/messages").kind, ROUTE_BODY));
    cr_assert(eq(int, (int)route_find("/health").kind, ROUTE_PAGE));
}
