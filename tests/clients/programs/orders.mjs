// What every JavaScript program here does with its library: as orders.py, in the same words.

import readline from "node:readline";

export const WEATHER = {
  name: "get_weather",
  description: "The weather in a city",
  parameters: {
    type: "object",
    properties: { city: { type: "string" }, days: { type: "integer" } },
    required: ["city", "days"],
  },
};

class View {
  pieces = [];
  finish = null;
  prompt_tokens = null;
  completion_tokens = null;
  tool = null;
  call_id = null;
  vectors = null;
  error = null;

  add(text) {
    if (text) this.pieces.push(text);
  }

  called(name, args) {
    this.tool = { name, arguments: typeof args === "string" ? JSON.parse(args) : args };
  }
}

// Carry out orders until stdin ends. describe: the fields of the library's exceptions.
export async function serve(handlers, describe) {
  const write = process.stdout.write.bind(process.stdout);
  console.log = console.info = console.error; // some libraries print
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const order = JSON.parse(line);
    const view = new View();
    try {
      await handlers[order.do](order, view);
    } catch (error) {
      console.error(error);
      view.error = {
        class: error.constructor.name,
        bases: bases(error),
        message: String(error.message),
        ...describe(error),
      };
    }
    write(JSON.stringify({ ...view, text: view.pieces.join("") }) + "\n");
  }
}

function bases(error) {
  const names = [];
  for (let at = Object.getPrototypeOf(error); at !== null; at = Object.getPrototypeOf(at)) {
    names.push(at.constructor.name);
  }
  return names;
}
