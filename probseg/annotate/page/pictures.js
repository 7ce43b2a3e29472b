// Photographs as bitmaps, and their thumbnails.

import { get, once } from "./requests.js";

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

  async _fetch(id) {
    try {
      const blob = await (await get(`photos/${id}/image`)).blob();
      return await createImageBitmap(blob);
    } catch (error) {
      this.kept.delete(id);
      throw error;
    }
  },
};

/** Thumbnails as blob addresses, fetched a few at a time, latest wish first. */
export const thumbnails = {
  kept: new Map(),
  wishes: [],
  running: 0,

  show(image, id) {
    if (this.kept.has(id)) image.src = this.kept.get(id);
    else {
      this.wishes.push({ image, id });
      this._run();
    }
  },

  async _run() {
    if (this.running >= 3) return;
    this.running++;
    for (let wish = this.wishes.pop(); wish; wish = this.wishes.pop()) {
      const { image, id } = wish;
      if (!image.isConnected) continue; // scrolled away
      try {
        if (!this.kept.has(id)) {
          const blob = await (await once(`photos/${id}/thumbnail`)).blob();
          this.kept.set(id, URL.createObjectURL(blob));
        }
        image.src = this.kept.get(id);
      } catch {
        // it stays grey; opening the photograph says why
      }
    }
    this.running--;
    for (const id of [...this.kept.keys()].slice(0, -400)) {
      URL.revokeObjectURL(this.kept.get(id));
      this.kept.delete(id);
    }
  },
};
