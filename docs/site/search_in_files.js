/* Search in pages that are opened from a folder: browsers start no worker there. Its script runs in a hidden frame instead. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(script) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      frame.srcdoc = "<script>window.postMessage = (data) => parent.postMessage({ worker: true, data }, '*')<" + "/script>"
        + `<script src="${script}"><` + "/script>"
      this.ready = new Promise((resolve) => frame.addEventListener("load", () => resolve(frame.contentWindow)))
      window.addEventListener("message", (event) => {
        if (event.source === frame.contentWindow && event.data.worker)
          this.dispatchEvent(new MessageEvent("message", { data: event.data.data }))
      })
      document.head.append(frame)
    }

    postMessage(data) {
      this.ready.then((target) => target.dispatchEvent(new target.MessageEvent("message", { data })))
    }

    terminate() {}
  }
}
