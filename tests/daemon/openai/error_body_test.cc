#include "daemon/openai/error_body.h"

#include "daemon/server/rpc_error.h"
#include "gtest/gtest.h"

namespace pagoda::daemon::openai {
namespace {

TEST(ErrorBodyTest, FieldsHaveTheirNamesHere) {
  EXPECT_EQ(FieldNameOf("sampling.top_p"), "top_p");
  EXPECT_EQ(FieldNameOf("prompt.token_ids.ids[3]"), "prompt[3]");
  EXPECT_EQ(FieldNameOf("prompt.chat.messages[1].role"), "messages[1].role");
  EXPECT_EQ(FieldNameOf("prompt.chat"), "messages");
  EXPECT_EQ(FieldNameOf("prompt.chat.tools_json"), "tools");
}

TEST(ErrorBodyTest, InvalidField) {
  const HttpError error =
      ToHttpError(InvalidFieldsError({{"sampling.top_p", "2 is outside (0, 1]"}}));
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.ToJson(),
            "{\"error\":{\"message\":\"top_p: 2 is outside (0, 1]\",\"type\":"
            "\"invalid_request_error\",\"param\":\"top_p\",\"code\":null}}");
}

TEST(ErrorBodyTest, FormsHaveTheNameThatTheClientGave) {
  const absl::Status status =
      InvalidFieldsError({{"sampling.json_schema", "not: is not supported"}});
  EXPECT_EQ(ToHttpError(status).param, "json_schema");
  EXPECT_EQ(ToHttpError(status, "tools").param, "tools");
  EXPECT_EQ(ToHttpError(status, "tools").message, "tools: not: is not supported");
  EXPECT_EQ(ToHttpError(InvalidFieldsError({{"sampling.top_p", "is bad"}}), "tools").param,
            "top_p");
}

TEST(ErrorBodyTest, StatusesAndRetries) {
  EXPECT_EQ(ToHttpError(ModelNotFoundError("x", "m")).status, 404);
  EXPECT_EQ(ToHttpError(ModelNotFoundError("x", "m")).code, "model_not_found");
  EXPECT_EQ(ToHttpError(PromptTooLongError("prompt.text", "long")).code, "context_length_exceeded");
  EXPECT_EQ(ToHttpError(DrainingError()).status, 503);
  EXPECT_TRUE(ToHttpError(TextQueueFullError(1)).worth_retrying);
  EXPECT_FALSE(ToHttpError(InternalError()).worth_retrying);
}

}  // namespace
}  // namespace pagoda::daemon::openai
