// Photographs as bitmaps, and their thumbnails.

import { frame, get, once } from "./requests.js";

/** Photographs as bitmaps: the ones that were asked for last. */
export const bitmaps = {
  kept: new Map(),
  shown: null, // the one on the canvas, which stays

  get(id) {
    const known = this.kept.get(id);
    this.kept.delete(id);
    const made = known ?? this._fetch(id);
    this.kept.set(id, made);
    for (const old of [...this.kept.keys()].slice(0, -4)) {
      this.kept.get(old).then((bitmap) => old !== this.shown && bitmap.close?.(), () => null);
      this.kept.delete(old);
    }
    return made;
  },

  forget(id) {
    this.kept.delete(id);
  },

  async _fetch(id) {
    try {
      const answer = await get(`photos/${id}/image`);
      const bitmap = await createImageBitmap(await answer.blob());
      return Object.assign(bitmap, { notice: answer.headers.get("X-Probseg-Notice") });
    } catch (error) {
      this.kept.delete(id);
      throw error;
    }
  },
};

/** What is fetched for pictures of photographs in view: a few at a time, the latest wish first. */
class Wishes {
  /**
   * `fetch(id)` returns a promise of what a picture needs, of which `most` are kept; `drop(made)` is
   * called for what is not.
   */
  constructor(fetch, most, drop = () => null) {
    Object.assign(this, { fetch, most, drop, kept: new Map(), wishes: [], running: 0 }); // promises by id
  }

  /** Call `show` with what belongs to a photograph once it is there, if `node` still is. */
  wish(id, node, show) {
    const wish = { id, node, show };
    if (this.kept.has(id)) this._fulfil(wish);
    else {
      this.wishes.push(wish);
      this._run();
    }
  }

  forget(id) {
    this.kept.get(id)?.then(this.drop, () => null);
    this.kept.delete(id);
  }

  clear() {
    for (const id of [...this.kept.keys()]) this.forget(id);
  }

  async _run() {
    if (this.running >= 3) return;
    this.running++;
    for (let wish = this.wishes.pop(); wish; wish = this.wishes.pop()) await this._fulfil(wish);
    this.running--;
    for (const id of [...this.kept.keys()].slice(0, -this.most)) this.forget(id);
  }

  async _fulfil({ id, node, show }) {
    if (!node.isConnected) return; // scrolled away
    if (!this.kept.has(id)) this.kept.set(id, this.fetch(id));
    const coming = this.kept.get(id);
    try {
      const made = await coming;
      if (this.kept.get(id) === coming) show(made);
      else this.wish(id, node, show); // it was forgotten meanwhile
    } catch {
      if (this.kept.get(id) === coming) this.kept.delete(id); // grey; opening the photograph says why
    }
  }
}

/** Addresses of thumbnails. */
export const thumbnails = new Wishes(
  async (id) => URL.createObjectURL(await (await once(`photos/${id}/thumbnail`)).blob()),
  400,
  (address) => URL.revokeObjectURL(address),
);

/** Maps of the finished objects at the size of the thumbnails. */
export const smallMasks = new Wishes(async (id) => frame(await once(`photos/${id}/masks`)), 400);
