// The transport that takes the clicker's actions on one photograph to the server.

import { parseFrames } from "./canvas.js";
import { bitmaps } from "./pictures.js";
import { frame, get, json, once, persist, ServerError } from "./requests.js";
import { windowId } from "./windows.js";

/** Actions of one photograph, sent one after the other, each on the revision that it was made on. */
export class PhotoTransport {
  constructor(photo, note, reader = false) {
    this.photo = photo;
    this.reader = reader; // who may only look
    this.note = note;
    this.revision = null;
    this.stale = false;
    this.idle = Promise.resolve();
  }

  /** Ask for all that is known; with `prepare` the server also gets the photograph ready for clicks. */
  open(prepare = !this.reader) {
    const path = `photos/${this.photo.id}`;
    const opened = this.idle
      .catch(() => null)
      .then(() => (prepare ? json(`${path}/open`, { body: { window: windowId } }) : json(path)))
      .then((known) => {
        this.revision = known.revision;
        this.stale = false;
        return known;
      });
    this.idle = opened; // later actions wait for the revision
    return opened;
  }

  fetchImage() {
    return bitmaps.get(this.photo.id);
  }

  async send(action, sequence) {
    const root = `photos/${this.photo.id}`;
    if (action.type === "preview") {
      const { x, y, positive } = action;
      return frame(await once(`${root}/preview`, { body: { sequence, x, y, positive } }));
    }
    if (action.type === "masks") {
      return parseFrames(await (await get(`${root}/objects/${action.objects}/mask`)).arrayBuffer());
    }
    if (["uncertainty", "without"].includes(action.type)) return frame(await get(`${root}/${action.type}`));
    const ask = action.type === "mask" ? () => this._ask() : () => this._act(action, sequence);
    const sent = this.idle.catch(() => null).then(ask);
    this.idle = sent;
    return sent;
  }

  /** Ask for all that the server knows, with the mask of the open object. */
  async _ask() {
    const answer = await frame(await get(`photos/${this.photo.id}/mask`));
    this.revision = answer.revision;
    this.stale = false;
    this.note(this.photo, answer);
    return answer;
  }

  async _act(action, sequence) {
    if (this.stale) throw new ServerError(409, "");
    if (this.unsure) this.revision = (await json(`photos/${this.photo.id}`)).revision;
    this.unsure = false;
    const root = `photos/${this.photo.id}`;
    const body = { sequence, revision: this.revision, action, window: windowId };
    try {
      const response = await persist(
        () => once(`${root}/actions`, { body }),
        async () => {
          // The answer may have been lost after the action was taken in: then it is not sent twice.
          const now = await frame(await once(`${root}/mask`));
          const own = now.revision === this.revision + 1 && [undefined, windowId].includes(now.by);
          return own ? now : null;
        },
      );
      const answer = { ...(response instanceof Response ? await frame(response) : response), sequence };
      this.revision = answer.revision;
      this.note(this.photo, answer);
      return answer;
    } catch (error) {
      if (error.status === 409) this.stale = true;
      error.photo = this.photo; // which may have been left
      this.unsure = error.status >= 500; // the database may have it though a file was not written
      throw error;
    }
  }
}
