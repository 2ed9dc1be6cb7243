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

const responseBody = (order) => ({
  model: order.model,
  input: order.prompt,
  max_output_tokens: order.max_tokens,
  ...order.extra,
});

async function responses(order, view) {
  const answer = await client(order).responses.create(responseBody(order), headers(order));
  view.add(answer.output_text);
  noteResponse(view, answer);
}

async function streamResponses(order, view) {
  const events = await client(order).responses.create({ ...responseBody(order), stream: true }, headers(order));
  for await (const event of events) {
    if (event.type === "response.output_text.delta") view.add(event.delta);
    if (event.type === "response.completed" || event.type === "response.incomplete") {
      noteResponse(view, event.response);
    }
  }
}

// A response, the same once more, and one that goes on from it.
async function kept(order, view) {
  const api = client(order).responses;
  const first = await api.create(responseBody(order), headers(order));
  const again = await api.retrieve(first.id, {}, headers(order));
  const second = await api.create({ ...responseBody(order), previous_response_id: first.id }, headers(order));
  for (const answer of [first, again, second]) view.add(answer.output_text);
}

function noteResponse(view, answer) {
  view.finish = answer.status;
  view.prompt_tokens = answer.usage.input_tokens;
  view.completion_tokens = answer.usage.output_tokens;
}

async function completion(order, view) {
  const answer = await client(order).completions.create(
    { model: order.model, prompt: order.prompt, max_tokens: order.max_tokens },
    headers(order),
  );
  const [choice] = answer.choices;
  view.add(choice.text);
  view.finish = choice.finish_reason;
  view.prompt_tokens = answer.usage.prompt_tokens;
  view.completion_tokens = answer.usage.completion_tokens;
}

// The library asks for base64 by itself, and gives numbers.
async function embed(order, view) {
  const answer = await client(order).embeddings.create(
    { model: order.model, input: [order.prompt, "And three lakes."] },
    headers(order),
  );
  view.vectors = answer.data.map((one) => one.embedding);
  view.prompt_tokens = answer.usage.prompt_tokens;
  view.completion_tokens = 0;
}

async function models(order, view) {
  const api = client(order).models;
  for await (const { id } of api.list(headers(order))) view.add((await api.retrieve(id, headers(order))).id);
}

const describe = ({ status, code, type, param, requestID }) => ({
  status_code: status,
  code,
  type,
  param,
  request_id: requestID,
});

await serve(
  {
    chat,
    stream,
    tools: (order, view) => chat(order, view, TOOLS),
    stream_tools: (order, view) => stream(order, view, TOOLS),
    responses,
    stream_responses: streamResponses,
    kept,
    completion,
    embed,
    models,
  },
  describe,
);
