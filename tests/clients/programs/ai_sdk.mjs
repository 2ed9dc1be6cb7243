// The Vercel AI SDK with @ai-sdk/openai-compatible.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, streamText, tool } from "ai";
import { serve, WEATHER } from "./orders.mjs";

const TOOLS = {
  tools: {
    [WEATHER.name]: tool({ description: WEATHER.description, inputSchema: jsonSchema(WEATHER.parameters) }),
  },
  toolChoice: { type: "tool", toolName: WEATHER.name },
};

function asked(order) {
  const provider = createOpenAICompatible({
    name: "weighbridge",
    baseURL: order.base_url,
    apiKey: order.key,
    includeUsage: true,
  });
  const retries = order.retries === null ? {} : { maxRetries: order.retries };
  return {
    model: provider(order.model),
    prompt: order.prompt,
    maxOutputTokens: order.max_tokens,
    headers: { "x-request-id": order.request_id },
    providerOptions: { weighbridge: order.extra },
    ...retries,
  };
}

async function chat(order, view, more = {}) {
  const signal = { abortSignal: AbortSignal.timeout(order.timeout_s * 1000) };
  const answer = await generateText({ ...asked(order), ...signal, ...more });
  view.call_id = answer.response.headers["x-weighbridge-call-id"];
  view.add(answer.text);
  note(view, answer.finishReason, answer.usage, answer.toolCalls);
}

async function stream(order, view, more = {}) {
  const leaving = new AbortController();
  const answer = streamText({
    ...asked(order),
    ...more,
    abortSignal: leaving.signal,
    onError: () => {}, // its own prints the error, which comes as a part too
  });
  for await (const part of answer.fullStream) {
    if (part.type === "text-delta") view.add(part.text);
    if (part.type === "error") throw part.error;
    if (order.leave_after !== null && view.pieces.length >= order.leave_after) {
      leaving.abort();
      return;
    }
  }
  view.call_id = (await answer.response).headers["x-weighbridge-call-id"];
  note(view, await answer.finishReason, await answer.usage, await answer.toolCalls);
}

function note(view, finish, usage, calls) {
  view.finish = finish;
  view.prompt_tokens = usage.inputTokens;
  view.completion_tokens = usage.outputTokens;
  for (const call of calls) view.called(call.toolName, call.input);
}

const describe = ({ statusCode, code, type, data, isRetryable, reason, errors }) => ({
  status_code: statusCode,
  code: code ?? data?.error?.code,
  type: type ?? data?.error?.type,
  param: data?.error?.param,
  retryable: isRetryable,
  reason,
  attempts: errors?.length,
});

await serve(
  {
    chat,
    stream,
    tools: (order, view) => chat(order, view, TOOLS),
    stream_tools: (order, view) => stream(order, view, TOOLS),
  },
  describe,
);
