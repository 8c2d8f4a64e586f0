// What the clients here have in common: the server's address, its rows, and how to say what was heard.

export const url = process.argv[2];

/** Asks for the server's statistics until `holds` is true of them. */
export async function statsWhen(holds) {
  for (;;) {
    const stats = await (await fetch(url.replace('/v1', '/stats'))).json();
    if (holds(stats)) return stats;
    // Leaves the processor to the server; nothing depends on the length.
    await new Promise((done) => setTimeout(done, 5));
  }
}

/** Begins a long answer, aborts it once it is told, and waits until no row is left. */
export async function aborted(begin) {
  const controller = new AbortController();
  const { heard, ended } = await begin(controller.signal);
  await heard;
  await statsWhen((stats) => stats.batch.active_rows === 1);
  controller.abort();
  const how = await ended;
  await statsWhen((stats) => stats.batch.active_rows === 0);
  return how;
}

/** Begins a long answer, and has the server end it from outside. */
export async function cancelled(begin) {
  const { heard, ended } = await begin();
  await heard;
  const { rows } = await statsWhen((stats) => stats.batch.active_rows === 1);
  await fetch(`${url}/requests/${rows[0].id}`, { method: 'DELETE' });
  return await ended;
}

/** What `call` throws, as `told` of it. */
export async function refused(call, told) {
  try {
    await call();
  } catch (error) {
    return told(error);
  }
  return null;
}

export function say(value) {
  console.log(JSON.stringify(value));
}
