// The search runs in a Worker, which browsers refuse to pages opened from a folder: there, a hidden frame does its work.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.waiting = [];
      this.postMessage = (data) => this.waiting.push(data);
      const script = frame.contentDocument.createElement("script");
      script.onload = () => {
        this.postMessage = (data) => inside.dispatchEvent(new inside.MessageEvent("message", { data }));
        this.waiting.forEach((data) => this.postMessage(data));
      };
      script.src = url;
      frame.contentDocument.body.append(script);
    }
  };
}
