// With Node 20 and later, @portkey-ai/gateway 1.15.2 answers every streamed request with 500 ("TypeError:
// immutable": it appends to the headers of a fetch() response). Loaded before it, this makes those headers
// mutable, so that its streams can be measured at all.
const fetched = globalThis.fetch;
const Response = globalThis.Response;
globalThis.fetch = async (...request) => {
  const answer = await fetched(...request);
  const { status, statusText } = answer;
  return new Response(answer.body, { status, statusText, headers: new Headers(answer.headers) });
};
