// Masks and maps of classes as files: PNG of one grey channel, several in a ZIP archive, or COCO's JSON.

const TABLE = Uint32Array.from({ length: 256 }, (_, n) => {
  for (let bit = 0; bit < 8; bit++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1;
  return n;
});

/** Return the CRC-32 of bytes, as PNG and ZIP have it. */
function checksum(bytes) {
  let sum = ~0;
  for (const byte of bytes) sum = TABLE[(sum ^ byte) & 0xff] ^ (sum >>> 8);
  return ~sum >>> 0;
}

/** Return numbers as bytes: [value, length] each. */
function pack(little, ...numbers) {
  const view = new DataView(new ArrayBuffer(numbers.reduce((sum, [, length]) => sum + length, 0)));
  let at = 0;
  for (const [value, length] of numbers) {
    view[`setUint${8 * length}`](at, value, little);
    at += length;
  }
  return new Uint8Array(view.buffer);
}

const bytesOf = async (parts) => new Uint8Array(await new Blob(parts).arrayBuffer());

/** Return a mask of window [x, y, columns, rows] and bytes as grey values: 255 on the object. */
export function grey({ window: [x, y, columns, rows], payload }, { width, height }) {
  const values = new Uint8Array(height * width);
  for (let row = 0; row < rows; row++) {
    const to = (y + row) * width + x;
    for (let column = 0; column < columns; column++) values[to + column] = 255 * payload[row * columns + column];
  }
  return values;
}

/** Return grey values, bytes, as a PNG of mode L. */
export async function png(values, { width, height }) {
  const lines = new Uint8Array(height * (width + 1)); // each begins with its filter: none
  for (let row = 0; row < height; row++) {
    lines.set(values.subarray(row * width, (row + 1) * width), row * (width + 1) + 1);
  }
  const stream = new Blob([lines]).stream().pipeThrough(new CompressionStream("deflate"));
  const pixels = new Uint8Array(await new Response(stream).arrayBuffer());
  const chunk = async (name, content) => {
    const named = await bytesOf([name, content]);
    return [pack(false, [content.length, 4]), named, pack(false, [checksum(named), 4])];
  };
  const header = pack(false, [width, 4], [height, 4], [8, 1], [0, 1], [0, 1], [0, 1], [0, 1]);
  const signature = Uint8Array.of(0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a);
  const chunks = [await chunk("IHDR", header), await chunk("IDAT", pixels), await chunk("IEND", new Uint8Array(0))];
  return bytesOf([signature, ...chunks.flat()]);
}

/** Return files {name: bytes} as an archive without further compression. */
export async function zip(files) {
  const [parts, entries] = [[], []];
  let offset = 0;
  for (const [name, content] of Object.entries(files)) {
    const encoded = new TextEncoder().encode(name);
    const [size, sum] = [content.length, checksum(content)];
    // Version 2.0, names in UTF-8, stored, on 1980-01-01
    const common = [[20, 2], [0x800, 2], [0, 2], [0, 2], [33, 2], [sum, 4], [size, 4], [size, 4], [encoded.length, 2], [0, 2]];
    const local = pack(true, [0x04034b50, 4], ...common);
    const place = [[0, 2], [0, 2], [0, 2], [0, 4], [offset, 4]];
    entries.push(pack(true, [0x02014b50, 4], [20, 2], ...common, ...place), encoded);
    parts.push(local, encoded, content);
    offset += local.length + encoded.length + size;
  }
  const length = entries.reduce((sum, entry) => sum + entry.length, 0);
  const count = entries.length / 2;
  const end = pack(true, [0x06054b50, 4], [0, 2], [0, 2], [count, 2], [count, 2], [length, 4], [offset, 4], [0, 2]);
  return bytesOf([...parts, ...entries, end]);
}

/** Return masks of a photograph as COCO's annotations, with run lengths that go down the columns. */
export function coco(masks, name, { width, height }) {
  const annotations = masks.map(({ window: [x, y, columns, rows], payload }, n) => {
    const counts = [0];
    let [value, area] = [0, 0];
    for (let column = 0; column < width; column++) {
      for (let row = 0; row < height; row++) {
        const [left, top] = [column - x, row - y];
        const inside = left >= 0 && top >= 0 && left < columns && top < rows ? payload[top * columns + left] : 0;
        if (inside !== value) counts.push(0);
        value = inside;
        counts[counts.length - 1]++;
        area += inside;
      }
    }
    const segmentation = { size: [height, width], counts };
    return { id: n + 1, image_id: 1, category_id: 1, iscrowd: 0, area, bbox: [x, y, columns, rows], segmentation };
  });
  return {
    images: [{ id: 1, file_name: name, width, height }],
    categories: [{ id: 1, name: "object" }],
    annotations,
  };
}
