// What the `openai` SDK for Node makes of chats and responses.
//
// Usage: node openai.mjs URL. Prints one JSON object.

import OpenAI from 'openai';
import { aborted, cancelled, refused, say, url } from './server.mjs';

const client = new OpenAI({ baseURL: url, apiKey: 'none', maxRetries: 0 });
const ask = (content) => [{ role: 'user', content }];
const OPTIONS = {
  model: 'default',
  temperature: 0,
  max_completion_tokens: 24,
  messages: ask('Which color is the sky?'),
};
const TOOL = {
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'Tells the weather in a city.',
    parameters: {
      type: 'object',
      properties: { city: { enum: ['Paris', 'Rome'] } },
      required: ['city'],
      additionalProperties: false,
    },
  },
};
const CALLING = {
  ...OPTIONS,
  messages: ask('How is the weather in Rome?'),
  max_completion_tokens: 80,
  tools: [TOOL],
  tool_choice: 'required',
  parallel_tool_calls: false,
};

function told(completion) {
  const { message, finish_reason } = completion.choices[0];
  const calls = (message.tool_calls ?? []).map((call) => [call.function.name, JSON.parse(call.function.arguments)]);
  return { text: message.content, calls, finish: finish_reason, usage: completion.usage };
}

async function streamed(options) {
  const stream = client.chat.completions.stream({ ...options, stream_options: { include_usage: true } });
  return told(await stream.finalChatCompletion());
}

function toldOfResponse(response) {
  const { status, output, output_text, usage } = response;
  return { status, items: output.map((item) => item.type), text: output_text, usage };
}

async function streamedResponse(options) {
  return toldOfResponse(await client.responses.stream(options).finalResponse());
}

async function story(signal) {
  const options = { ...OPTIONS, messages: ask('Tell me a long story.'), max_completion_tokens: 4000, stream: true };
  const stream = await client.chat.completions.create(options, { signal });
  let hear;
  const heard = new Promise((done) => (hear = done));
  const read = async () => {
    let finish = null;
    for await (const chunk of stream) {
      hear();
      finish = chunk.choices[0].finish_reason ?? finish;
    }
    return finish ?? 'aborted';
  };
  // The SDK ends an aborted stream quietly, whatever was on its way.
  return { heard, ended: read() };
}

const typed = (error) => [error.constructor.name, error instanceof OpenAI.APIError, error.status, error.param, error.code];
const RESPONSE = { model: 'default', temperature: 0, max_output_tokens: 24, input: 'Which color is the sky?' };

say({
  whole: told(await client.chat.completions.create(OPTIONS)),
  streamed: await streamed(OPTIONS),
  called: told(await client.chat.completions.create(CALLING)),
  'called streamed': await streamed(CALLING),
  response: toldOfResponse(await client.responses.create(RESPONSE)),
  'response streamed': await streamedResponse(RESPONSE),
  'bad value': await refused(() => client.chat.completions.create({ ...OPTIONS, temperature: -1 }), typed),
  'unknown model': await refused(() => client.chat.completions.create({ ...OPTIONS, model: 'gpt-4o' }), typed),
  'bad stream': await refused(() => client.chat.completions.create({ ...OPTIONS, stream: true, n: 2 }), typed),
  aborted: await aborted(story),
  cancelled: await cancelled(story),
});
