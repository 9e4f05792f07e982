// Reads the columns that `columns.py` packs: base64, deflate, variable length, differences.

function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const plain = atob(text);
  const bytes = new Uint8Array(plain.length);
  for (let at = 0; at < plain.length; at++) bytes[at] = plain.charCodeAt(at);
  return bytes;
}

/** The numbers of a column. They are exact up to 2**53. */
export async function unpack(text) {
  const stream = new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return numbersOf(new Uint8Array(await new Response(stream).arrayBuffer()));
}

/** The numbers whose differences these bytes hold. */
function numbersOf(bytes) {
  let count = 0;
  for (let at = 0; at < bytes.length; at++) count += bytes[at] < 128 ? 1 : 0;
  const numbers = new Float64Array(count);
  let at = 0;
  let last = 0;
  for (let index = 0; index < count; index++) {
    let folded = 0;
    let scale = 1;
    let byte;
    do {
      byte = bytes[at++];
      folded += (byte & 127) * scale;
      scale *= 128;
    } while (byte > 127);
    const half = Math.floor(folded / 2);
    last += folded % 2 === 1 ? -half - 1 : half;
    numbers[index] = last;
  }
  return numbers;
}

/** Several columns of an object at once, by name. */
export async function unpackAll(holder, names) {
  const columns = await Promise.all(names.map((name) => unpack(holder[name])));
  return Object.fromEntries(names.map((name, at) => [name, columns[at]]));
}
