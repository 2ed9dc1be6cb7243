// openai-node.

import OpenAI from "openai";
import { serve, WEATHER } from "./orders.mjs";

const TOOLS = {
  tools: [{ type: "function", function: WEATHER }],
  tool_choice: { type: "function", function: { name: WEATHER.name } },
};

function client(order) {
  const retries = order.retries === null ? {} : { maxRetries: order.retries };
  return new OpenAI({ baseURL: order.base_url, apiKey: order.key, timeout: order.timeout_s * 1000, ...retries });
}

const body = (order) => ({
  model: order.model,
  messages: [{ role: "user", content: order.prompt }],
  max_tokens: order.max_tokens,
  ...order.extra,
});

const headers = (order) => ({ headers: { "x-request-id": order.request_id } });

async function chat(order, view, more = {}) {
  const asked = client(order).chat.completions.create({ ...body(order), ...more }, headers(order));
  const { data, response } = await asked.withResponse();
  view.call_id = response.headers.get("x-weighbridge-call-id");
  const [choice] = data.choices;
  view.add(choice.message.content);
  view.finish = choice.finish_reason;
  view.prompt_tokens = data.usage.prompt_tokens;
  view.completion_tokens = data.usage.completion_tokens;
  for (const call of choice.message.tool_calls ?? []) view.called(call.function.name, call.function.arguments);
}

async function stream(order, view, more = {}) {
  const asked = client(order).chat.completions.create(
    { ...body(order), ...more, stream: true, stream_options: { include_usage: true } },
    headers(order),
  );
  const { data, response } = await asked.withResponse();
  view.call_id = response.headers.get("x-weighbridge-call-id");
  let name = null;
  let called = "";
  for await (const chunk of data) {
    if (chunk.usage) {
      view.prompt_tokens = chunk.usage.prompt_tokens;
      view.completion_tokens = chunk.usage.completion_tokens;
    }
    for (const choice of chunk.choices) {
      view.finish = choice.finish_reason ?? view.finish;
      view.add(choice.delta.content);
      for (const call of choice.delta.tool_calls ?? []) {
        name = call.function.name ?? name;
        called += call.function.arguments ?? "";
      }
    }
    if (order.leave_after !== null && view.pieces.length >= order.leave_after) return;
  }
  if (name !== null) view.called(name, called);
}

const describe = ({ status, code, type, param, requestID }) => ({ status_code: status, code, type, param, request_id: requestID });

await serve(
  {
    chat,
    stream,
    tools: (order, view) => chat(order, view, TOOLS),
    stream_tools: (order, view) => stream(order, view, TOOLS),
  },
  describe,
);
