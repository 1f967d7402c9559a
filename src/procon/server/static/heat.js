// Heat-map values to colours: the stops of procon/showing/painting.py, so that a part looks the same here and in a report.

export const STOPS = [0.55, 0.8, 1.0, 1.4, 2.0];
export const COLORS = [[255, 236, 130], [255, 205, 60], [250, 120, 30], [224, 30, 60], [150, 0, 110]];
export const OPACITY = [0.0, 0.2, 0.38, 0.5, 0.58];

/** [red, green, blue, alpha 0..1] of a level: 0 is a typical good patch, 1 a value that few good images reach. */
export function colorOf(level) {
  const last = STOPS.length - 1;
  if (level <= STOPS[0]) return [...COLORS[0], OPACITY[0]];
  if (level >= STOPS[last]) return [...COLORS[last], OPACITY[last]];
  const right = STOPS.findIndex((stop) => stop >= level);
  const share = (level - STOPS[right - 1]) / (STOPS[right] - STOPS[right - 1]);
  const mix = (a, b) => a + share * (b - a);
  return [...COLORS[right].map((value, i) => mix(COLORS[right - 1][i], value)), mix(OPACITY[right - 1], OPACITY[right])];
}

/** Base64 float32 to numbers. */
export function decodeMap(map) {
  const bytes = Uint8Array.from(atob(map.data), (character) => character.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

/** Paint a map on a canvas of its own size; the alpha is scaled so that the strongest colour is opaque. */
export function paint(canvas, map, typical, threshold) {
  const values = decodeMap(map);
  canvas.width = map.width;
  canvas.height = map.height;
  const image = new ImageData(map.width, map.height);
  const span = Math.max(threshold - typical, 1e-12);
  const most = OPACITY[OPACITY.length - 1];
  for (let i = 0; i < values.length; i++) {
    const [red, green, blue, alpha] = colorOf((values[i] - typical) / span);
    image.data.set([red, green, blue, 255 * alpha / most], 4 * i);
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}
