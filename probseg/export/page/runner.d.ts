/** Segmentation with a network that `probseg export --to page` has written. */

/** A click in pixels of the image: x to the right, y down, counted from 0. */
export interface Click {
  x: number;
  y: number;
  positive: boolean;
}

/** [x0, y0, x1, y1] in pixels, half-open. */
export type Box = [number, number, number, number];

/** Values, rows first, channels last. */
export interface Maps<Data = Float32Array> {
  data: Data;
  height: number;
  width: number;
  channels: number;
}

/** Pixels of four channels, as `getImageData` returns them. */
export interface Pixels {
  data: Uint8Array | Uint8ClampedArray;
  width: number;
  height: number;
}

/** An answer: probabilities at the pixels of a box of the image, or at fewer positions spread evenly. */
export interface Answer {
  values: Maps;
  box: Box;
  size: [height: number, width: number];
}

export interface Options {
  /** Another build of onnxruntime-web, such as that with WebGPU. */
  ort?: unknown;
  /** Where the .wasm files are; the folder itself by default. */
  wasmPaths?: string;
  /** By default half of what the processor has, at most 4, where the page is isolated (COOP, COEP), else 1. */
  threads?: number;
  /** Run graphs in a worker; not through a bundler, as the worker loads the script again. */
  proxy?: boolean;
  /** Passed to `InferenceSession.create`: `executionProviders` and others. */
  session?: object;
}

/** The graphs of a folder. Calls wait for those before. */
declare class Network {
  protected constructor(about: object, graphs?: object, ort?: unknown);
  /** Release the graphs, and the memory that they take. */
  dispose(): Promise<void>;
}

/** Segments one image at a time by clicks. */
export class Runner extends Network {
  /** Load `export.json` and the graphs from the address of a folder. */
  static load(folder: string | URL, options?: Options): Promise<Runner>;
  /** Settings of the zoom; null shows the whole image, or the surroundings of the box. */
  zoom: object | null;
  readonly clicks: readonly Click[];
  readonly box: Box | null;
  readonly answer: Answer | null;
  /** Begin with a new image; transparent parts are white. */
  setImage(image: Pixels | ImageBitmapSource): Promise<void>;
  /** Add prompts; returns the probability of the object at all pixels. */
  predict(clicks?: readonly Click[], box?: Box | null): Promise<Maps>;
  /** Add prompts; returns the answer itself, from which `masked` takes the mask. */
  ask(clicks?: readonly Click[], box?: Box | null): Promise<Answer>;
  /** Encode ahead what the next click probably needs; without it, that click takes longer. */
  prepare(): Promise<void>;
  /** Forget box and clicks; the image stays. */
  reset(): Promise<void>;
}

/** Tells the class of each pixel. */
export class ClassRunner extends Network {
  /** Load `export.json` and the graph from the address of a folder. */
  static load(folder: string | URL, options?: Options): Promise<ClassRunner>;
  /** Their names, by number. */
  readonly classes: readonly string[];
  /** Return the class number of each pixel; transparent parts are white. */
  predict(image: Pixels | ImageBitmapSource): Promise<Maps<Uint8Array>>;
}

export {};

/** Return the mask of an answer: its window and, row by row, 1 on the object. */
export function masked(answer: Answer): {
  window: [x: number, y: number, width: number, height: number];
  payload: Uint8Array;
};
