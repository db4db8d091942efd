// Publishes the assets of one kind of every stage of a cloud assembly, as the roles that the assembly names:
// node publish_assets.js FOLDER file|docker-image
const fs = require("fs");
const path = require("path");
const { AssetManifest, AssetPublishing, DefaultAwsClient, DestinationPattern } = require("@aws-cdk/cdk-assets-lib");

async function publish(folder, kind) {
  const names = fs.readdirSync(folder, { recursive: true });
  for (const name of names.filter((one) => /^assembly-.*\.assets\.json$/.test(one)).sort()) {
    const whole = AssetManifest.fromPath(path.join(folder, name));
    const ids = whole.entries.filter((one) => one.type === kind).map((one) => one.id);
    const manifest = whole.select(ids.map((id) => new DestinationPattern(id.assetId, id.destinationId)));
    const aws = new DefaultAwsClient();
    await new AssetPublishing(manifest, { aws, throwOnError: true, publishInParallel: true }).publish();
    console.log(`${name}: ${manifest.entries.length} published`);
  }
}

publish(...process.argv.slice(2)).catch((error) => {
  console.error(`${error}`);
  process.exit(1);
});
