// The transport that takes the clicker's actions on one photograph to the server.

import { bitmaps } from "./pictures.js";
import { frame, get, json, once, persist, ServerError } from "./requests.js";

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
      .then(() => (prepare ? json(`${path}/open`, { body: {} }) : json(path)))
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
    if (action.type === "mask") {
      return frame(await get(action.object == null ? `${root}/mask` : `${root}/objects/${action.object}/mask`));
    }
    if (action.type === "uncertainty") return frame(await get(`${root}/uncertainty`));
    const sent = this.idle.catch(() => null).then(() => this._act(action, sequence));
    this.idle = sent;
    return sent;
  }

  async _act(action, sequence) {
    if (this.stale) throw new ServerError(409, "");
    const root = `photos/${this.photo.id}`;
    const body = { sequence, revision: this.revision, action };
    let arrived = null;
    try {
      const response = await persist(
        () => once(`${root}/actions`, { body }),
        async () => {
          // The answer may have been lost after the action was taken in: then it is not sent twice.
          const now = await (await once(root)).json();
          if (now.revision !== this.revision + 1) return null;
          arrived = now;
          return once(`${root}/mask`);
        },
      );
      const answer = { ...(await frame(response)), ...arrived, sequence };
      this.revision = answer.revision;
      this.note(this.photo, answer);
      return answer;
    } catch (error) {
      if (error.status === 409) this.stale = true;
      throw error;
    }
  }
}
