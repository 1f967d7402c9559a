// Lines of equal value in a heat map: the outlines of regions.

/** The lines where values [height][width] cross `level`, as a path in units of cells; marching squares, interpolated. */
export function contour(values, width, height, level) {
  const at = (x, y) => (x < 0 || y < 0 || x >= width || y >= height ? -Infinity : values[y * width + x]);
  const share = (a, b) => (Number.isFinite(a) && Number.isFinite(b) ? (level - a) / (b - a) : 0.5);
  const lines = [];
  for (let y = -1; y < height; y++) {
    for (let x = -1; x < width; x++) {
      const [a, b, c, d] = [at(x, y), at(x + 1, y), at(x + 1, y + 1), at(x, y + 1)];
      const crossed = [];
      if (a > level !== b > level) crossed.push([x + share(a, b), y]);
      if (b > level !== c > level) crossed.push([x + 1, y + share(b, c)]);
      if (d > level !== c > level) crossed.push([x + share(d, c), y + 1]);
      if (a > level !== d > level) crossed.push([x, y + share(a, d)]);
      if (crossed.length === 4) crossed.push(crossed.splice(1, 1)[0]); // a saddle: two areas that touch at a corner
      for (let i = 0; i + 1 < crossed.length; i += 2) lines.push([crossed[i], crossed[i + 1]]);
    }
  }
  return lines;
}

/** The outlines of regions in pixels of the image: the path of each, or its box where the small map shows no line, and
    the point of it that is nearest to the upper left corner of the box. */
export function outlines(regions, map, values, width, height) {
  const levels = new Map();
  return regions.map(({ box: [left, top, right, bottom], level }) => {
    if (!levels.has(level)) levels.set(level, contour(values, map.width, map.height, level));
    const scale = [width / map.width, height / map.height];
    const place = ([x, y]) => [
      Math.min(Math.max((x + 0.5) * scale[0], 0), width), Math.min(Math.max((y + 0.5) * scale[1], 0), height)];
    const inside = ([x, y]) => x >= left - scale[0] && x <= right + scale[0] && y >= top - scale[1] && y <= bottom + scale[1];
    const own = levels.get(level).map((line) => line.map(place)).filter((line) => line.every(inside));
    const words = (point) => point.map((value) => value.toFixed(1)).join(" ");
    if (!own.length) return { path: `M${left} ${top}H${right}V${bottom}H${left}z`, corner: [left, top] };
    const distance = ([x, y]) => Math.hypot(x - left, y - top);
    return {
      path: own.map(([from, to]) => `M${words(from)}L${words(to)}`).join(""),
      corner: own.flat().reduce((best, point) => (distance(point) < distance(best) ? point : best)),
    };
  });
}
