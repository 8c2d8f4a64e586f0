// What the AI SDK makes of chats, through its provider for servers like this one, and of responses, through the
// one for OpenAI.
//
// Usage: node ai.mjs URL. Prints one JSON object.

import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { APICallError, generateText, streamText, tool } from 'ai';
import { z } from 'zod';
import { aborted, cancelled, refused, say, url } from './server.mjs';

const chats = createOpenAICompatible({ name: 'slipstream', baseURL: url, apiKey: 'none', includeUsage: true });
const responses = createOpenAI({ baseURL: url, apiKey: 'none' });
const MODELS = { chat: chats('default'), responses: responses.responses('default') };

const weather = tool({
  description: 'Tells the weather in a city.',
  inputSchema: z.object({ city: z.enum(['Paris', 'Rome']) }),
});
const options = (model, more) => ({
  model,
  temperature: 0,
  maxRetries: 0,
  maxOutputTokens: 24,
  prompt: 'Which color is the sky?',
  onError: () => {},
  ...more,
});
const calling = (model) =>
  options(model, {
    prompt: 'How is the weather in Rome?',
    maxOutputTokens: 80,
    tools: { get_weather: weather },
    toolChoice: { type: 'tool', toolName: 'get_weather' },
  });

async function told(result) {
  const { inputTokens, outputTokens, totalTokens } = await result.usage;
  const calls = (await result.toolCalls).map((call) => [call.toolName, call.input, call.invalid ?? false]);
  const [text, finish] = [await result.text, await result.finishReason];
  return { text, calls, finish, usage: [inputTokens, outputTokens, totalTokens] };
}

async function streamed(options) {
  const result = streamText(options);
  let text = '';
  for await (const delta of result.textStream) text += delta;
  return { ...(await told(result)), text };
}

function story(model) {
  return async (abortSignal) => {
    const long = { prompt: 'Tell me a long story.', maxOutputTokens: 4000, abortSignal };
    const { fullStream } = streamText(options(model, long));
    let hear;
    const heard = new Promise((done) => (hear = done));
    const read = async () => {
      let last = null;
      for await (const part of fullStream) {
        if (part.type === 'text-delta') hear();
        last = part;
      }
      return last.type === 'abort' ? 'aborted' : last.finishReason;
    };
    return { heard, ended: read() };
  };
}

const typed = (error) => [error.constructor.name, APICallError.isInstance(error), error.statusCode, error.isRetryable];

const all = {};
for (const [name, model] of Object.entries(MODELS)) {
  all[name] = {
    whole: await told(await generateText(options(model))),
    streamed: await streamed(options(model)),
    called: await told(await generateText(calling(model))),
    'called streamed': await streamed(calling(model)),
    refused: await refused(() => generateText(options(model, { temperature: -1 })), typed),
    aborted: await aborted(story(model)),
    cancelled: await cancelled(story(model)),
  };
}
say(all);
